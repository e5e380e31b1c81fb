"""Tensors as flat arrays of unsigned words, and back: the bits themselves, whatever they mean.

Codecs see words (uint8, uint16, uint32 or uint64 by element size; a complex128 is two uint64), so a NaN's
payload, a negative zero and a subnormal survive like any other value.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.borrowed import borrowed
from dynaquant_core.errors import LimitError
from dynaquant_core.state.limits import SURE, memory_limit
from dynaquant_core.state.pages import empty_tensor
from dynaquant_core.state.spec import TensorSpec, dtype_of, item_bytes

__all__ = ["bytes_of", "copied", "empty_words", "tensor_of", "words_of"]

_WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}
_SAME_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Words = NDArray[Any]


def words_of(tensor: torch.Tensor) -> Words:
    """The tensor's bits in C order, as unsigned words on the CPU.

    A view of the tensor's own memory where it is a contiguous CPU tensor; a copy otherwise.

    Args:
        tensor: strided, any device, any dtype of the table.

    Returns:
        Words of shape [numel] ([2 * numel] for complex128).

    Example:
        >>> words_of(torch.tensor([1.0, -0.0])).tolist() == [0x3F800000, 0x80000000]
        True
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    size = plain.element_size()
    if size in _SAME_SIZE:  # integers copy everywhere; half-precision complex numbers do not
        plain = plain.view(_SAME_SIZE[size])
    return borrowed(bytes_of(plain.to("cpu"))).view(_WORDS[size])


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in C order: uint8, on its device; its own memory where that is contiguous.

    What is conjugated or negated by a flag alone has no bytes of its own: those of a copy are given.

    Args:
        tensor: strided.

    Example:
        >>> bytes_of(torch.arange(4, dtype=torch.int16)[::4])
        tensor([0, 0], dtype=torch.uint8)
    """
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 1:  # contiguous for torch whatever its stride is, which `view` minds
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)


def tensor_of(words: Words, spec: TensorSpec) -> torch.Tensor:
    """The tensor whose bits are ``words``; it shares their memory, which must be writable.

    Args:
        words: C-contiguous unsigned words, as `words_of` gives them.
        spec: shape and dtype; their bytes must equal those of ``words``.

    Example:
        >>> tensor_of(np.array([0x3F80], np.uint16), TensorSpec((1, 1), "bfloat16"))
        tensor([[1.]], dtype=torch.bfloat16)
    """
    if words.size == 0:
        return torch.empty(spec.shape, dtype=dtype_of(spec.dtype), device="cpu")
    flat = torch.from_numpy(words.view(np.uint8))
    return flat.view(dtype_of(spec.dtype)).reshape(spec.shape)


def copied(words: Words, spec: TensorSpec) -> torch.Tensor:
    """As `tensor_of`, in memory of torch's own: what a user gets can be resized.

    Example:
        >>> copied(np.array([0x3F80], np.uint16), TensorSpec((1, 1), "bfloat16"))
        tensor([[1.]], dtype=torch.bfloat16)
    """
    tensor = empty_tensor(spec)
    np.copyto(words_of(tensor), words.reshape(-1))
    return tensor


def empty_words(spec: TensorSpec) -> Words:
    """Uninitialised words for a tensor that a file announces.

    Raises:
        LimitError: the announced size is more memory than this process can have; nothing was allocated.
    """
    size = item_bytes(spec.dtype)
    nbytes = spec.nbytes
    advice = "the file is damaged, or must be loaded on a larger machine or with names=."
    if nbytes > SURE and nbytes > memory_limit():
        raise LimitError(f"A tensor of shape {spec.shape} needs {nbytes} bytes, over all memory; {advice}")
    try:
        return np.empty(nbytes // min(size, 8), _WORDS[size])
    except MemoryError as error:
        raise LimitError(
            f"A tensor of shape {spec.shape} needs {nbytes} bytes that are not free; {advice}"
        ) from error
