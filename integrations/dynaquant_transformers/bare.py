"""A checkpoint's folder without native weights, whoever writes them there, and with the signpost instead."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from dynaquant_transformers.native import ADAPTER_WEIGHTS, WEIGHT_FILES, load_json

__all__ = ["SIGNPOST", "put_signpost", "remove_weights", "without_weights"]

#: Who looks for native weights is told, by the name of a file that is not there, what to do.  It has no "/",
#: and fewer characters than a file's name may have.
SIGNPOST: Final = (
    "import dynaquant_transformers (of DynaQuant) and the Trainer reads this "
    "checkpoint, for from_pretrained run dynaquant export CHECKPOINT --to hf -o FOLDER and load FOLDER"
)

#: The list of a model's modules, and of their folders.
MODULES: Final = "modules.json"


@contextmanager
def without_weights(folder: Path, adapters: Iterable[str]) -> Iterator[None]:
    """Native weights that the block writes into a checkpoint's folder are taken out at its end.

    What lay there before is somebody's own, and so are weights in other folders than those of the model.

    Args:
        folder: of the checkpoint.
        adapters: names of those that the checkpoint holds; they lie in folders of their names.
    """
    names = list(adapters)
    before = set(_weights(folder, names))
    yield
    remove_weights(folder, names, before)


def remove_weights(
    folder: Path, adapters: Iterable[str], spared: Container[tuple[Path, tuple[int, int]]] = ()
) -> None:
    """Takes the model's native weights out of a checkpoint's folder.

    Args:
        folder: of the checkpoint.
        adapters: as in `without_weights`.
        spared: files that stay, as `_weights` tells them.
    """
    for file in list(_weights(folder, list(adapters))):
        if file not in spared:
            file[0].unlink()


def put_signpost(folder: Path) -> None:
    """Puts the index of weights into a checkpoint's folder, which leads its reader to `SIGNPOST`."""
    index = {"metadata": {"note": SIGNPOST}, "weight_map": {"": f"{SIGNPOST}.safetensors"}}
    (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _weights(folder: Path, adapters: list[str]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """The model's files of weights, and by what one is told from another of its name."""
    found = [path for path in (folder.iterdir() if folder.is_dir() else ()) if _is_weights(path)]
    found += [folder / name / file for name in adapters for file in ADAPTER_WEIGHTS]
    found += [path for inside in _modules(folder) for path in inside.rglob("*") if _is_weights(path)]
    for path in found:
        if path.is_file():
            there = path.stat()
            yield path, (there.st_ino, there.st_mtime_ns)


def _is_weights(path: Path) -> bool:
    return WEIGHT_FILES.fullmatch(path.name) is not None


def _modules(folder: Path) -> Iterator[Path]:
    """Folders of a model's modules, where it lies in several (sentence-transformers)."""
    if not (folder / MODULES).is_file():
        return
    for module in load_json(folder / MODULES):
        name = module.get("path", "")
        if name and Path(name).name == name:
            yield folder / name
