"""Bits of tensors: exact for every dtype, bounded before they are allocated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dynaquant_core.errors import CorruptFileError, LimitError
from dynaquant_core.state import TensorSpec, dtype_of, empty_words, tensor_of, words_of
from dynaquant_core.state.spec import _DTYPES
from tests.state.trees import same, tensors


@settings(deadline=None, max_examples=300)
@given(tensors())
def test_words_there_and_back(tensor):
    spec = TensorSpec.of(tensor)
    words = words_of(tensor)
    assert words.nbytes == spec.nbytes
    assert words.flags.c_contiguous
    assert empty_words(spec).shape == words.shape
    assert empty_words(spec).dtype == words.dtype
    assert same(tensor_of(words.copy(), spec), tensor)


@pytest.mark.parametrize("name", list(_DTYPES))
def test_every_dtype_of_the_table(name):
    bits = np.arange(64, dtype=np.uint8) % (2 if name == "bool" else 251)
    size = TensorSpec((1,), name).nbytes
    spec = TensorSpec((8, 64 // size // 8) if size <= 8 else (2, 2), name)
    tensor = torch.from_numpy(bits.copy()).view(dtype_of(name)).reshape(spec.shape)
    assert words_of(tensor).view(np.uint8).tolist() == bits.tolist()
    assert words_of(tensor.t()).nbytes == spec.nbytes


@pytest.mark.parametrize("name", list(_DTYPES))
def test_one_element_of_any_stride(name):
    """`x[:, 0]` of one row: contiguous for torch, whatever lies between its elements."""
    size = TensorSpec((1,), name).nbytes
    bits = np.arange(2 * size, dtype=np.uint8) % 2
    tensor = torch.from_numpy(bits.copy()).view(dtype_of(name)).as_strided((1, 1), (2, 2))
    assert tensor.is_contiguous()
    assert words_of(tensor).view(np.uint8).tolist() == bits[:size].tolist()


def test_contiguous_tensors_are_not_copied():
    tensor = torch.zeros(5)
    words_of(tensor)[0] = 0x3F800000
    assert tensor[0] == 1.0


def test_absurd_sizes_are_refused_before_allocation():
    with pytest.raises(LimitError):
        empty_words(TensorSpec((1 << 22, 1 << 22), "float32"))


def test_unknown_dtypes():
    for name in ("qint8", "float", "", "__class__"):
        with pytest.raises(CorruptFileError):
            dtype_of(name)
