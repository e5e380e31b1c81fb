"""One state as one self-contained file, without a store around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dynaquant_core.errors import MissingBaseError
from dynaquant_core.methods.base import Method
from dynaquant_core.methods.registry import require_own_config
from dynaquant_core.store.catalogue import Scan, read_entry
from dynaquant_core.store.chain import open_chain
from dynaquant_core.store.commit import remove_abandoned
from dynaquant_core.store.disk import require_space, require_target
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import prepare
from dynaquant_core.store.remarks import Remarks
from dynaquant_core.store.restore import whole_state
from dynaquant_core.store.saving import Saving, Sealed
from dynaquant_core.store.writer import write_file

__all__ = ["begin_file", "read_file"]


def begin_file(
    path: Path,
    state: Any,
    *,
    config: Any = None,
    method: str | Mapping[str, Any] | Method | None = None,
    moments: str = "8bit",
    exact: str | Sequence[str] = (),
    gradients: Mapping[str, Tensor] | None = None,
    model: Any = None,
) -> Saving:
    """Begins a save into ``path``; arguments as those of `CheckpointStore` and its ``save``.

    Raises:
        UnsupportedStateError, ConfigError, UnknownMethodError: as there.
        ConfigError: ``config`` is of another method than the one that was asked for.
        UnsafePathError: the path names no file, or something else than a file stands there.
    """
    path = require_target(path)
    settings = Settings.of(method, moments, exact)
    if settings.named:
        require_own_config(config, settings.weights)
    prepared = prepare(settings, 0, state, gradients=gradients, model=model, config=config)
    Remarks().on(prepared, settings, gradients, model)

    def write(sealed: Sealed) -> CheckpointInfo:
        require_space(path.parent, sealed.most, sealed.estimate)
        _, seconds = write_file(path, sealed, sealed.meta(0))
        remove_abandoned(path)
        return replace(read_entry(path).info, seconds=seconds)

    return prepared.saving(None, write)


def read_file(path: Path) -> Any:
    """The state of a file that stands alone: one that `begin_file` wrote, or a store's key checkpoint.

    Raises:
        CorruptFileError, UnsafePathError, StorageError: it cannot be read.
        MissingBaseError: it is a delta, which only its store can read.
    """
    entry = read_entry(path)
    if entry.meta.base is not None:
        raise MissingBaseError(
            f"{str(path)!r} is a delta on the checkpoint of step {entry.meta.base.step}; "
            "load it through its store, or export it from there."
        )
    with open_chain(Scan((entry,), (), frozenset(), foreign=False), entry) as chain:
        return whole_state(chain.last, chain.hold(whole=True), None)
