"""From a checkpoint folder of ours to one that Accelerate reads by itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dynaquant_accelerate.folders import SIGN, is_sign, of_two_saves, stub_in
from dynaquant_accelerate.guard import require_ours
from dynaquant_accelerate.live import NAMED
from dynaquant_core.errors import NotAStoreError, StateMismatchError
from dynaquant_core.plugins import MARKER, read_tree
from dynaquant_core.plugins.native_files import write_natively
from dynaquant_core.plugins.new_folder import copy_files, new_folder

__all__ = ["export"]

logger = logging.getLogger(__name__)

#: Where Accelerate looks for weights before it looks under the name of `SIGN`.
SAFE: Final = "model.safetensors"

#: How a module's own values end that are no tensors, in its state.
EXTRA: Final = "_extra_state"


def export(
    tree: Any,
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    prefix: str = "",
) -> None:
    """Writes a checkpoint as the folder that ``Accelerator.load_state`` reads without this package.

    Args:
        tree: as `plugins.read_tree` gives it; None: it is read from ``source``.  That of a store is taken
            too where it holds what ``state_dict`` gives: of a model under "model", of one optimizer, or of
            each in a list, under "optimizer".
        path: the new folder; nothing may be there, or an empty folder.
        source: the checkpoint's folder, whose scheduler, random streams and so on are copied; None: only
            weights and optimizers are written, which the log says, as ``load_state`` asks for more.  Where
            a later save that was never finished has written those, the log says so, too.
        prefix: put before every name of the models' tensors: "module." for a run under data parallelism,
            "_orig_mod." for a compiled model.

    Raises:
        NotAStoreError: ``source`` is no checkpoint of ours.
        StateMismatchError: the tree is not one that we saved for Accelerate, nor one model's tensors and
            optimizers by numbers.
        UnsafePathError: something is at ``path``.
        StorageError: the system refused; nothing is at ``path``.
    """
    target, folder = Path(path), None if source is None else Path(source)
    if folder is not None and not require_ours(folder):
        raise NotAStoreError(f"{str(folder)!r} is no DynaQuant checkpoint of Accelerate.")
    if tree is None and folder is not None:
        tree = read_tree(folder)
    if folder is not None and (mixed := of_two_saves(folder)) is not None:
        logger.warning("%s: both are exported as they are", mixed)
    _require_models(tree)
    optimizers = _optimizers(tree["optimizer"])
    with new_folder("export to", target) as fresh:
        if folder is not None:
            copy_files(folder, fresh, _is_ours)
        _write(tree, optimizers, fresh, prefix)
    if folder is None:
        logger.warning(
            "%s holds weights and optimizers only, and load_state asks for schedulers and random streams, "
            "too; copy the checkpoint's other files there",
            target,
        )


def _is_ours(path: Path) -> bool:
    begins, ends = (".dynaquant", "rest.pt", "rest-1.pt"), (".dq",)
    known = path.name == MARKER or (path.name == SIGN and is_sign(path))
    return known or path.name.startswith(begins) or path.name.endswith(ends)


def _require_models(tree: Any) -> None:
    """Refuses what holds no weights by name; only `live.state_of` has several models under names."""
    if not isinstance(tree, Mapping) or not {"model", "optimizer"} <= set(tree):
        raise StateMismatchError("this is not what DynaQuant saves for Accelerate; export it with --to pt.")
    models = tree["model"] if isinstance(tree["model"], Mapping) else {"": {}}
    inner = [name for name, value in models.items() if isinstance(value, Mapping)]
    if not all(NAMED.fullmatch(str(name)) or str(name).endswith(EXTRA) for name in inner):
        raise StateMismatchError(
            "this is not what DynaQuant saves for Accelerate: expected tensors by name under 'model', found "
            "other values or several models; export it with --to pt."
        )


def _optimizers(stored: Any) -> Sequence[Any]:
    """Each optimizer's state, as Accelerate would load it; one alone may stand there by itself."""
    several = [stored] if isinstance(stored, Mapping) else stored
    if isinstance(several, list | tuple) and all(_is_numbered(state) for state in several):
        return several
    raise StateMismatchError(
        "this is not what DynaQuant saves for Accelerate: expected optimizers under 'optimizer' whose "
        "parameters have numbers, found others (a Checkpointer's have names); export it with --to pt."
    )


def _is_numbered(state: Any) -> bool:
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(groups, list | tuple):
        return False
    return all(type(number) is int for group in groups for number in group["params"])


def _write(tree: Mapping[str, Any], optimizers: Sequence[Any], folder: Path, prefix: str) -> None:
    models, averages = _modules(tree["model"], tree.get("files"))
    for place, weights in enumerate(models):
        named = {prefix + name: value for name, value in weights.items()}
        file = folder / _numbered(SIGN, place)
        if named or not file.exists():  # a hook of the user may have written weights under this name
            _save(named, file)
        if named:  # what the user has put there is not of this checkpoint
            (folder / _numbered(SAFE, place)).unlink(missing_ok=True)
    stubs = [path for path in sorted(folder.glob("custom_checkpoint_*.pkl"), key=_number) if stub_in(path)]
    for place, path in enumerate(stubs):  # there are none without a source
        _save(averages.get(place, {}), path)
    for place, state in enumerate(optimizers):
        _save(state, folder / _numbered("optimizer.bin", place))


def _save(state: Any, path: Path) -> None:
    with path.open("wb") as file:
        write_natively(state, file)


def _modules(
    stored: Mapping[str, Any], files: Sequence[str | None] | None
) -> tuple[list[Mapping[str, Any]], dict[int, Any]]:
    """What `live.state_of` has named: the models in the order of their files, and averages by their places.

    Args:
        stored: by name, or one alone.
        files: as `live.state_of`; None: of a version that did not write it, the models in their order.
    """
    if not all(NAMED.fullmatch(name) for name in stored):
        alone = next((name for name in files or () if name is not None), None)
        if files is not None and alone is None:
            return [{} for _ in files], {0: stored}
        stored = {alone or "model_0": stored}
    if files is None:
        files = [name for name in stored if name.startswith("model_")]
    averages = {int(name.rsplit("_", 1)[1]): stored[name] for name in stored if name.startswith("average_")}
    return [stored[name] if name is not None else {} for name in files], averages


def _numbered(name: str, place: int) -> str:
    """The name that Accelerate gives to the file of the object at ``place``."""
    stem, suffix = name.rsplit(".", 1)
    return f"{stem}_{place}.{suffix}" if place else name


def _number(path: Path) -> int:
    return int(path.stem.rsplit("_", 1)[1])
