"""The Trainer's native files: names, whether a folder holds them, what the system says of them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers.trainer import (
    OPTIMIZER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from transformers.trainer_pt_utils import safe_globals
from transformers.utils import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from dynaquant_core.errors import CorruptFileError, DynaQuantError, StorageError
from dynaquant_core.plugins import MARKER, is_checkpoint
from dynaquant_core.plugins.marker import Marker

__all__ = [
    "ADAPTER_WEIGHTS",
    "DEFAULT",
    "WEIGHTS",
    "WEIGHT_FILES",
    "digests",
    "holds_state",
    "is_ours",
    "is_state",
    "load_json",
    "require_readable",
    "scheduler_state",
    "told",
]

logger = logging.getLogger(__name__)

#: Files of a model's weights and of an adapter's, the preferred ones first.
WEIGHTS: Final = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
ADAPTER_WEIGHTS: Final = (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME)

#: The adapter that lies in the checkpoint's own folder; others lie in folders of their name.
DEFAULT: Final = "default"

#: Native files of weights, whole or a part.
WEIGHT_FILES: Final = re.compile(
    "|".join(map(re.escape, (*WEIGHTS, *ADAPTER_WEIGHTS))) + r"|.*-\d{5}-of-\d{5}\.(safetensors|bin)"
)

#: Files of weights and optimizers, native ones and ours.
STATE_FILES: Final = re.compile(
    f"{WEIGHT_FILES.pattern}|{re.escape(OPTIMIZER_NAME)}" + r"|.*\.dq|rest(-1)?\.pt|\.?dynaquant\..*"
)

#: Files that every native save writes, and that tell one from another; a marker's note has their digests.
TELLING: Final = (TRAINER_STATE_NAME, TRAINING_ARGS_NAME)

#: Random streams, of one process or of each rank.
RANDOM: Final = "rng_state*.pth"

#: Folders that were taken for native ones, of which it was said.
_said: set[Path] = set()


def is_ours(path: Any) -> bool:
    """Whether ``path`` is a checkpoint of ours, over which no native one was saved since.

    A native save of the weights alone leaves no optimizer there; it tells by the Trainer's state and
    arguments, which are not those that the marker knows then.  Weights that somebody else has put beside a
    checkpoint of ours are none.

    Example:
        >>> is_ours("nowhere"), is_ours(None)
        (False, False)
    """
    if not is_checkpoint(path):
        return False
    folder = Path(path)
    whole = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, "*-of-*.safetensors", "*-of-*.bin")
    adapters = (name for name in ADAPTER_WEIGHTS for name in (name, f"*/{name}"))
    if not any(True for name in (*whole, *adapters) for _ in folder.glob(name)):
        return True
    return not ((folder / OPTIMIZER_NAME).is_file() or _saved_after(folder))


def is_state(path: Path, folder: Path, adapters: Container[str]) -> bool:
    """Whether a file below a checkpoint's folder is of its weights or its optimizer, native or ours.

    All else is somebody's own, weights in other folders than those of its adapters too.

    Example:
        >>> folder = Path("checkpoint-2")
        >>> [is_state(folder / name, folder, ["other"]) for name in ("optimizer.pt", "ema/model.safetensors")]
        [True, False]
        >>> is_state(folder / "other" / "adapter_model.safetensors", folder, ["other"])
        True
    """
    if path.parent == folder:
        return bool(STATE_FILES.fullmatch(path.name))
    return path.parent.parent == folder and path.parent.name in adapters and path.name in ADAPTER_WEIGHTS


def holds_state(folder: Path) -> bool:
    """Whether anything of weights or an optimizer lies in a folder or below, whatever loads it.

    Example:
        >>> holds_state(Path("nowhere"))
        False
    """
    return any(STATE_FILES.fullmatch(path.name) for path in folder.rglob("*"))


def digests(folder: Path) -> dict[str, str]:
    """Digests of the files in `TELLING` by their names, as far as they are there.

    Raises:
        StorageError: one cannot be read.

    Example:
        >>> digests(Path("nowhere"))
        {}
    """
    found = {}
    for path in (folder / name for name in TELLING):
        if path.is_file():
            with told("read", path):
                found[path.name] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return found


def _saved_after(folder: Path) -> bool:
    """Whether the Trainer saved there after a checkpoint of ours was committed; then it says so."""
    try:
        note = Marker.read(folder).note
        now = digests(folder)
    except DynaQuantError:
        return False  # what is wrong with it its reader says
    other = [name for name in TELLING if name in note and now.get(name, note[name]) != note[name]]
    if other:
        reason = f"{' and '.join(other)} changed since it was saved"
    elif not any(name in note for name in TELLING) and _is_younger(folder):
        reason = f"{TRAINER_STATE_NAME} is younger than {MARKER} (after a plain cp it may be, too)"
    else:
        return False
    if folder not in _said:
        _said.add(folder)
        logger.warning(
            "%s: the weights beside the DynaQuant checkpoint are taken, as a native save after it, and its "
            "optimizer is not, because %s; remove the weights to resume from the DynaQuant checkpoint",
            folder,
            reason,
        )
    return True


def _is_younger(folder: Path) -> bool:
    """Whether the Trainer's state is younger than our marker: all that an older version leaves to tell by."""
    try:
        state, marker = folder / TRAINER_STATE_NAME, folder / MARKER
        return bool(state.stat().st_mtime_ns > marker.stat().st_mtime_ns)
    except FileNotFoundError:
        return False


def require_readable(folder: Path) -> None:
    """Reads the small files that the Trainer reads when it resumes, as far as they are there.

    The random streams of every rank are among them: one rank that cannot read its own ends all.

    Raises:
        CorruptFileError, StorageError: one cannot be read.
    """
    load_json(folder / TRAINER_STATE_NAME)
    scheduler_state(folder)
    with safe_globals():  # the Trainer's own: NumPy's stream is an array
        for path in sorted([*folder.glob(SCALER_NAME), *folder.glob(RANDOM)]):
            _load_torch(path)


def scheduler_state(folder: Path) -> dict[str, Any] | None:
    """The scheduler's state in a checkpoint; None where there is none.

    Raises:
        CorruptFileError, StorageError: the file cannot be read.
    """
    path = folder / SCHEDULER_NAME
    return _load_torch(path) if path.is_file() else None


def _load_torch(path: Path) -> Any:
    """What torch.save wrote; nothing in it is executed; raises CorruptFileError or StorageError."""
    try:
        with told("read", path):
            return torch.load(path, map_location="cpu", weights_only=True)
    except StorageError:
        raise
    except Exception as error:  # torch raises unpicklers', zip's and its own errors alike
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise CorruptFileError(f"{str(path)!r} cannot be read as a file of torch.save ({reason}).") from error


def load_json(path: Path) -> Any:
    """What a file of JSON holds; raises CorruptFileError or StorageError."""
    try:
        with told("read", path):
            return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFileError(f"{str(path)!r} is not JSON ({error}).") from error


@contextmanager
def told(what: str, path: Path) -> Iterator[None]:
    """What the system refuses becomes one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what} {str(path)!r}: {error.strerror or error}.") from error
