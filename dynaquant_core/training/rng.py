"""The random streams a training run draws from: Python's, NumPy's, torch's on the CPU and on CUDA."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dynaquant_core.errors import StateMismatchError

__all__ = ["own_rank", "put_rng_back", "require_rng", "rng_state"]

logger = logging.getLogger(__name__)


def rng_state() -> dict[str, Any]:
    """Where every global random stream stands, as a tree of numbers, arrays and tensors.

    CUDA streams are included once CUDA is in use; asking never starts it.  Generators that a user
    made are the user's own (`extra` of the Checkpointer takes torch's, NumPy's and Python's).

    Returns:
        ``{"python", "numpy", "torch", "cuda"}``; about 10 kB.

    Example:
        >>> before = rng_state()
        >>> drawn = torch.rand(1)
        >>> put_rng_back(before)
        >>> bool(torch.rand(1) == drawn)
        True
    """
    version, words, gauss = random.getstate()
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        # an array, because 625 numbers in a tree of plain objects cost four times the bytes
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the legacy stream is what users draw from
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if in_use else [],
    }


def own_rank() -> int | None:
    """This process's number among the ranks of a job, whose streams may differ; None: it is in no job."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def put_rng_back(state: Mapping[str, Any]) -> None:
    """Puts every random stream back to where `rng_state` found it.

    CUDA devices that are no longer there are passed over with a line in the log.
    """
    _put(state, random.setstate, np.random.set_state, torch.set_rng_state)
    _put_cuda_back(state["cuda"])


def require_rng(state: Any) -> None:
    """Refuses what `put_rng_back` could not put back, by trying it on generators of its own.

    Raises:
        StateMismatchError: it is not what `rng_state` gives; no random stream was touched.

    Example:
        >>> require_rng(rng_state())
    """
    numpy_kind = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
    try:
        _put(
            state,
            random.Random().setstate,
            np.random.RandomState(numpy_kind()).set_state,
            torch.Generator("cpu").set_state,
        )
        _require_cuda(state["cuda"])
    except Exception as error:  # each generator refuses in its own way
        raise StateMismatchError(
            f"rng: the checkpoint holds no random streams there as a Checkpointer saves them "
            f"({type(error).__name__}: {error}); save what is of another kind under another name than 'rng'. "
            f"Nothing was restored."
        ) from error


def _put(
    state: Mapping[str, Any],
    python: Callable[[Any], object],
    numpy: Callable[[Any], object],
    on_cpu: Callable[[torch.Tensor], object],
) -> None:
    stored = state["python"]
    words = tuple(int(word) for word in stored["words"])
    python((stored["version"], words, stored["gauss"]))
    numpy(state["numpy"])
    on_cpu(state["torch"])


def _require_cuda(streams: Any) -> None:
    for stream in streams:
        if not isinstance(stream, torch.Tensor) or stream.dtype != torch.uint8:
            raise TypeError(f"a stream of CUDA is {type(stream).__name__}")


def _put_cuda_back(streams: list[torch.Tensor]) -> None:
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, stream in enumerate(streams[:present]):
        torch.cuda.set_rng_state(stream, device)
    if len(streams) > present:
        logger.warning(
            "random streams of %d CUDA devices were saved and %d are here: the others are not put back",
            len(streams),
            present,
        )
