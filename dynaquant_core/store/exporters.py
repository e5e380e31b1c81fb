"""Which exporter writes, and which importer reads, which kind of file: built-in ones, and installed ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from pathlib import Path
from typing import Any

from dynaquant_core.config import nearest, require
from dynaquant_core.errors import ConfigError, DependencyError

__all__ = [
    "BUILT_IN",
    "ENTRY_POINTS",
    "Exporter",
    "Importer",
    "exporter_names",
    "resolve_exporter",
    "resolve_importer",
    "taken",
]

#: Writes a state as loaded from a store to a path.  One that takes ``metadata`` gets what the file that the
#: checkpoint was made of said of itself (`described`), one that takes ``source`` a framework's own folder.
Exporter = Callable[..., None]

#: Reads another program's checkpoint: (completed optimizer steps, state).  One that takes ``weights_only``
#: runs no code unless that is False.
Importer = Callable[..., tuple[int, Any]]

ENTRY_POINTS, IMPORTERS = "dynaquant.exporters", "dynaquant.importers"

BUILT_IN: Mapping[str, str] = {
    "pt": "dynaquant_core.store.export:to_pt",
    "safetensors": "dynaquant_core.store.export:to_safetensors",
}

#: What a suffix means when no exporter is named.
SUFFIXES: Mapping[str, str] = {
    ".pt": "pt",
    ".pth": "pt",
    ".bin": "pt",
    ".ckpt": "pt",
    ".safetensors": "safetensors",
}


def exporter_names() -> list[str]:
    """Every name `resolve_exporter` knows: the built-in ones first, then installed ones."""
    return [*BUILT_IN, *sorted(set(_installed(ENTRY_POINTS)) - set(BUILT_IN))]


def resolve_exporter(to: str | None, path: str | os.PathLike[str]) -> Exporter:
    """The exporter named ``to``, or the one that the suffix of ``path`` asks for.

    Raises:
        ConfigError: no exporter of that name, or no name and a suffix that tells nothing; ``to`` is no text.
        DependencyError: it is installed but cannot be imported.

    Example:
        >>> resolve_exporter(None, "model.safetensors").__name__
        'to_safetensors'
    """
    require(
        to is None or isinstance(to, str), f"to must be an exporter's name (a text) or None, got {to!r:.80}."
    )
    name = to or SUFFIXES.get(Path(path).suffix.lower())
    names = exporter_names()
    if name is None:
        raise ConfigError(
            f"Cannot tell the format of {str(path)!r} by its suffix; give one of {', '.join(names)}."
        )
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        exporter: Exporter = getattr(import_module(module), attribute)
        return exporter
    installed: Exporter = _load("exporter", name, _installed(ENTRY_POINTS), names)
    return installed


def taken(write: Exporter, **known: Any) -> dict[str, Any]:
    """Which of the arguments that are known an exporter takes; those that are None or empty are not known.

    Example:
        >>> taken(lambda state, path, source=None: None, source=Path("checkpoint-3"), metadata={"a": "b"})
        {'source': PosixPath('checkpoint-3')}
    """
    parameters = signature(write).parameters
    return {name: value for name, value in known.items() if value and name in parameters}


def resolve_importer(name: str) -> Importer:
    """The installed importer of that name.

    Raises:
        ConfigError: there is none.
        DependencyError: it is installed but cannot be imported.
    """
    found = _installed(IMPORTERS)
    importer: Importer = _load("importer", name, found, sorted(found))
    return importer


def _load(kind: str, name: str, installed: Mapping[str, EntryPoint], names: Sequence[str]) -> Any:
    if name not in names:
        raise ConfigError(f"There is no {kind} {name!r}; {nearest(name, names)}")
    try:
        return installed[name].load()
    except (ImportError, AttributeError) as error:
        raise DependencyError(f"{kind} {name!r} is installed but fails to import: {error}.") from error


def _installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}
