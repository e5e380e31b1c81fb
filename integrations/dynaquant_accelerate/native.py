"""From a checkpoint folder of ours to one that Accelerate reads by itself."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dynaquant_accelerate.folders import SIGN, is_sign
from dynaquant_accelerate.guard import require_ours
from dynaquant_accelerate.shadows import STUB
from dynaquant_core.errors import NotAStoreError, StateMismatchError, StorageError, UnsafePathError
from dynaquant_core.plugins import MARKER, read_tree

__all__ = ["export"]


def export(
    tree: Any,
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    prefix: str = "",
) -> None:
    """Writes a checkpoint as the folder that ``Accelerator.load_state`` reads without this package.

    Args:
        tree: as `plugins.read_tree` gives it; None: it is read from ``source``.
        path: the new folder; nothing may be there.
        source: the checkpoint's folder, whose scheduler, random streams and so on are copied; None: only
            weights and optimizers are written.
        prefix: put before every name of the models' tensors: "module." for a run under data parallelism,
            "_orig_mod." for a compiled model.

    Raises:
        NotAStoreError: ``source`` is no checkpoint of ours.
        StateMismatchError: the tree is not one that we saved for Accelerate.
        UnsafePathError: something is at ``path``.
        StorageError: the system refused; nothing is at ``path``.
    """
    target, folder = Path(path), None if source is None else Path(source)
    if folder is not None and not require_ours(folder):
        raise NotAStoreError(f"{str(folder)!r} is no DynaQuant checkpoint of Accelerate.")
    if tree is None and folder is not None:
        tree = read_tree(folder)
    if not isinstance(tree, Mapping) or not {"model", "optimizer"} <= set(tree):
        raise StateMismatchError("this is not what DynaQuant saves for Accelerate; export it with --to pt.")
    if target.exists():
        raise UnsafePathError(f"{str(target)!r} exists already: give a folder that is to be made.")
    fresh = target.with_name(f".{target.name}.tmp-{uuid.uuid4().hex}")
    try:
        if folder is None:
            fresh.mkdir(parents=True)
        else:
            shutil.copytree(folder, fresh, ignore=_ours)
        _write(tree, fresh, prefix)
        fresh.rename(target)
    except (OSError, RuntimeError) as error:  # torch makes RuntimeErrors of what the system refuses
        raise StorageError(f"{str(target)!r} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _ours(folder: str, names: list[str]) -> set[str]:
    begins, ends = (".dynaquant", "rest.pt", "rest-1.pt"), (".dq",)
    known = {MARKER} | ({SIGN} if is_sign(Path(folder, SIGN)) else set())
    return {name for name in names if name in known or name.startswith(begins) or name.endswith(ends)}


def _write(tree: Mapping[str, Any], folder: Path, prefix: str) -> None:
    models, averages = _modules(tree["model"], tree.get("files"))
    for place, weights in enumerate(models):
        named = {prefix + name: value for name, value in weights.items()}
        file = folder / _numbered(SIGN, place)
        if named or not file.exists():  # a hook of the user may have written weights under this name
            torch.save(named, file)
    stubs = [path for path in sorted(folder.glob("custom_checkpoint_*.pkl"), key=_number) if _is_stub(path)]
    for place, path in enumerate(stubs):  # there are none without a source
        torch.save(averages.get(place, {}), path)
    for place, state in enumerate(tree["optimizer"]):
        torch.save(state, folder / _numbered("optimizer.bin", place))


def _modules(
    stored: Mapping[str, Any], files: Sequence[str | None] | None
) -> tuple[list[Mapping[str, Any]], dict[int, Any]]:
    """What `live.state_of` has named: the models in the order of their files, and averages by their places.

    Args:
        stored: by name, or one alone.
        files: as `live.state_of`; None: of a version that did not write it, the models in their order.
    """
    if not all(re.fullmatch(r"(model|average)_\d+", name) for name in stored):
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


def _is_stub(path: Path) -> bool:
    if path.stat().st_size > 16384:
        return False
    try:
        return bool(torch.load(path, weights_only=True) == STUB)
    except Exception:  # noqa: BLE001 - an object of the user's, which is no stub
        return False
