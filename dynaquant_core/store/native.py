"""Reads what others wrote: torch.save files and safetensors.  Nothing in them is executed, unless trusted."""

from __future__ import annotations

import errno
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynaquant_core.errors import CorruptFileError, StorageError, UnsupportedStateError
from dynaquant_core.format import MAGIC
from dynaquant_core.store.disk import followed, is_dangling

__all__ = [
    "first_line",
    "is_safetensors",
    "read_native",
    "read_torch",
    "refused_class",
    "step_of",
    "whole_number",
]

#: How the writers of training states call the step; the first one found is taken.
STEP_KEYS = ("step", "global_step", "iteration", "iter", "steps")
LENGTH_BYTES = 8
#: Files of weights in a folder.
WEIGHTS = ("*.safetensors", "*.bin")

#: How torch says that a class is not allowed.
REFUSED = re.compile(r"Unsupported (?:global|class)[: ]+(?:GLOBAL )?(\S+)|but got <class '([^']+)'>")

#: Dtypes of NumPy numbers, text and dates, as in the log of a training.  Not objects: they could be anything.
PLAIN = "?bhilqBHILQefdFDSUMm"


def read_native(path: Path, *, weights_only: bool = True) -> Any:
    """Returns the state in a torch.save or safetensors file, on the CPU.

    Args:
        path: of the file.
        weights_only: refuse objects whose reading could run code.

    Raises:
        StorageError: the file is missing or cannot be read.
        UnsupportedStateError: ``weights_only`` refused an object, whose class is named; or a .dq file.
        CorruptFileError: the file is neither of the two, or damaged.
    """
    try:
        if not path.is_file():
            found = _found_at(path)
            raise StorageError(f"{path}: expected a torch.save or safetensors file, found {found}.")
        _refuse_own(path)
        if is_safetensors(path):
            return _read_safetensors(path)
        return read_torch(path, "a torch.save or safetensors file", weights_only=weights_only)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror or error}); check its permissions."
        ) from error


def read_torch(path: Path, what: str, *, weights_only: bool, harmless: Sequence[Any] = ()) -> Any:
    """Returns what is in a torch.save file, on the CPU.

    Args:
        path: of the file.
        what: is expected there, for the message.
        weights_only: refuse objects whose reading could run code; NumPy's numbers are none.
        harmless: further classes and functions of which that is known.

    Raises:
        OSError: the system refuses.
        UnsupportedStateError: ``weights_only`` refused an object, whose class is named.
        CorruptFileError: it is no such file, or damaged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about the file's age are not ours to pass on
            with torch.serialization.safe_globals([*_plain_numpy(), *harmless]):
                return torch.load(path, map_location="cpu", weights_only=weights_only)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise CorruptFileError(  # torch sought before the beginning of a file that was cut short
            f"{path}: expected a torch.save file, found a damaged one; copy the file again."
        ) from error
    except Exception as error:  # torch raises unpicklers', zip's and its own errors alike
        refused = refused_class(error)
        if refused:
            raise UnsupportedStateError(
                f"{path}: holds a {refused}, and reading it could run code; "
                "save only tensors, numbers, strings and containers of them, then try again."
            ) from error
        raise CorruptFileError(
            f"{path}: expected {what}, found something else or a damaged file{_cause(error)}; "
            "check the path, or copy the file again."
        ) from error


def refused_class(error: BaseException | None) -> str | None:
    """The class of which torch says that it does not read it unless the file is trusted.

    Example:
        >>> refused_class(ValueError("Unsupported global: GLOBAL argparse.Namespace was not allowed"))
        'argparse.Namespace'
        >>> refused_class(None) is None
        True
    """
    found = REFUSED.search(str(error))
    return (found[1] or found[2]) if found else None


def is_safetensors(path: Path) -> bool:
    """Whether the file begins like safetensors: a length that fits the file, then a JSON object."""
    with path.open("rb") as file:
        head = file.read(LENGTH_BYTES + 1)
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    return head[LENGTH_BYTES:] == b"{" and 0 < length <= path.stat().st_size - LENGTH_BYTES


def step_of(state: Any) -> int:
    """The step a native state names itself; 0 where it names none."""
    if isinstance(state, dict):
        for key in STEP_KEYS:
            value = whole_number(state.get(key))
            if value is not None and value >= 0:
                return value
    return 0


def whole_number(value: Any) -> int | None:
    """A whole number of any kind, as in a tensor; None for anything else.

    Example:
        >>> whole_number(torch.tensor(3)), whole_number(4.0), whole_number(True), whole_number("5")
        (3, 4, None, None)
    """
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        value = value.item() if np.prod(value.shape) == 1 else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def _found_at(path: Path) -> str:
    """What is there in place of a file, and what to do about it."""
    if is_dangling(path):
        return f"a symbolic link to nothing ({followed(path)}); check where it leads"
    if not path.exists():
        return "nothing; check the path"
    if not path.is_dir():
        return "no regular file but a pipe or a device; copy what it gives to a file first"
    if not any(found for ending in WEIGHTS for found in path.glob(ending)):
        return "a folder; check the path"
    return (
        "a folder of files of weights; give one of them, or take the folder of a model or a Trainer into a "
        "store with `dynaquant import FOLDER STORE --from hf`"
    )


def _refuse_own(path: Path) -> None:
    with path.open("rb") as file:
        ours = file.read(len(MAGIC)) == MAGIC
    if ours:
        raise UnsupportedStateError(
            f"{path}: expected a torch.save or safetensors file, found a .dq file, compressed already; write "
            "it as one of them with `dynaquant decompress`, or load it with load_file."
        )


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, json.JSONDecodeError, ValueError) as error:
        raise CorruptFileError(f"{path}: not a whole safetensors file ({first_line(error)}).") from error


def _plain_numpy() -> list[Any]:
    """What NumPy's scalars and arrays are pickled with, under its module's name of today and before 2.0.

    None of it runs code: bytes become numbers.  A training's losses and metrics often are of this kind.
    """
    makers: list[Any] = [np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]]
    cores = ("numpy.core", "numpy._core")
    names = [(make, f"{core}.multiarray.{make.__name__}") for make in makers for core in cores]
    return [*names, np.ndarray, np.dtype, *{type(np.dtype(code)) for code in PLAIN}]


def _cause(error: BaseException) -> str:
    """What torch's zip reader says is wrong; not its unpickler, whose advice is to read without its guard."""
    line = first_line(error)
    tells = isinstance(error, RuntimeError) and "weights" not in line.lower()
    return f" ({line})" if tells else ""


def first_line(error: BaseException) -> str:
    """What an error says first, or its class."""
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__
