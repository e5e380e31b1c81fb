"""Whether a framework has saved natively over a checkpoint of ours: then that is what it would resume from.

Told by names and small files alone, since `log` and `verify` must not import a framework.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

from dynaquant_core.errors import NotAStoreError
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.store.disk import guarded

__all__ = ["is_pointer", "overwritten", "require_current"]

#: What is in the file that stands for a Composer checkpoint, and how long it is at most.
POINTS = b"dynaquant_composer"
POINTER_BYTES = 4096

#: What the name of a Composer checkpoint's folder has more than its file's.
BESIDE = ".dynaquant"

#: What the Trainer calls weights, its optimizer, and the files by which its saves are told apart.
WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "*-of-*.safetensors",
    "*-of-*.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "*/adapter_model.safetensors",
    "*/adapter_model.bin",
)
OPTIMIZER, TELLING = "optimizer.pt", ("trainer_state.json", "training_args.bin")

#: What Accelerate calls weights, those of the first model, and its first optimizer.
PREPARED = re.compile(r"model(_\d+)?\.safetensors|pytorch_model(_\d+)?\.bin")
FIRST, FIRST_OPTIMIZER = "pytorch_model.bin", "optimizer.bin"

#: In what stands for an optimizer and for weights in a checkpoint of ours for Accelerate; both are small.
STUB, SIGN, SMALL = b"the state lies in the DynaQuant checkpoint beside this file", b"InstallFirst", 16384


def overwritten(folder: Path, marker: Marker) -> str | None:
    """One sentence that says so, or None.

    Args:
        folder: of the checkpoint.
        marker: that it has now.

    Raises:
        StorageError: the system refuses to look.

    Example:
        >>> from dynaquant_core.store.meta import BaseLink
        >>> overwritten(Path("nowhere"), Marker("transformers", BaseLink(3, 1, "0" * 32), {}))
    """
    looked_at = HOW.get(marker.framework)
    with guarded("look at", folder):
        if looked_at is None or not looked_at(folder, marker):
            return None
    return (
        f"{folder}: {marker.framework} has saved natively over the DynaQuant checkpoint of step "
        f"{marker.step}, and resumes from what it saved; use that as it is, or export the newest .dq file "
        "in the folder."
    )


def require_current(folder: Path, marker: Marker) -> None:
    """Raises NotAStoreError where `overwritten` says something."""
    said = overwritten(folder, marker)
    if said:
        raise NotAStoreError(said)


def is_pointer(file: Path) -> bool:
    """Whether a file stands for the Composer checkpoint beside it."""
    return _says(file, POINTS, POINTER_BYTES)


def _trainer(folder: Path, marker: Marker) -> bool:
    """Its weights are there, with its optimizer or with other files than the marker's note knows."""
    if not any(True for name in WEIGHTS for _ in folder.glob(name)):
        return False
    known = [name for name in TELLING if name in marker.note and (folder / name).is_file()]
    return (folder / OPTIMIZER).is_file() or any(
        blake2b((folder / name).read_bytes(), digest_size=16).hexdigest() != marker.note[name]
        for name in known
    )


def _accelerate(folder: Path, marker: Marker) -> bool:  # noqa: ARG001 - the files tell
    """Its optimizer is there, and no sign in place of weights, or others beside it."""
    optimizer = folder / FIRST_OPTIMIZER
    if not optimizer.is_file() or _says(optimizer, STUB, SMALL):
        return False
    weights = [path for path in folder.iterdir() if PREPARED.fullmatch(path.name)]
    return len(weights) > 1 or not _says(folder / FIRST, SIGN, SMALL)


def _composer(folder: Path, marker: Marker) -> bool:  # noqa: ARG001 - the file tells
    """The file beside the folder does not point to it."""
    file = folder.with_name(folder.name.removesuffix(BESIDE))
    return file != folder and file.is_file() and not is_pointer(file)


def _says(path: Path, words: bytes, most: int) -> bool:
    return path.is_file() and path.stat().st_size <= most and words in path.read_bytes()


HOW: Mapping[str, Callable[[Path, Marker], bool]] = {
    "transformers": _trainer,
    "accelerate": _accelerate,
    "composer": _composer,
}
