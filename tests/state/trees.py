"""Random states of every supported kind, and an equality that looks at types, bits and sharing."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from dynaquant_core.state import words_of

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
ARRAY_DTYPES = [
    "?",
    "i1",
    "u2",
    "i4",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    ">f4",
    ">i8",
    "<U3",
    "S5",
    "M8[ns]",
    "m8[D]",
]


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """Any bit pattern of any dtype, any small shape, contiguous or not."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 4)]))
    count = math.prod(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    data = draw(st.binary(min_size=count * size, max_size=count * size))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


@st.composite
def arrays(draw: Any) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(ARRAY_DTYPES)))
    shape = draw(st.sampled_from([(), (0,), (3,), (2, 4)]))
    count = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype.kind in "US":
        data = bytes(count)
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape).copy()


def special_float(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**60, max_value=2**700),
    st.floats(),
    st.sampled_from([0x7FF8000000000123, 0xFFF0000000000001, 1 << 63, 1]).map(special_float),
    st.text(max_size=8),
    st.just("\ud800 lone"),
    st.text(alphabet="ab\u00e9\u4e2d", min_size=1100, max_size=1200),
    st.binary(max_size=20),
    st.binary(min_size=1024, max_size=1100),
    st.timedeltas(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    st.sampled_from([Path("a/b"), Path("/"), Path()]),
    st.sampled_from(
        [np.float32(1.5), np.float64("nan"), np.int8(-3), np.bool_(True), np.str_("né"), np.str_("")]
    ),
    st.sampled_from([np.datetime64("2020-01-01"), np.complex64(1j), np.float16("inf"), np.bytes_(b"x")]),
)

keys = st.one_of(
    st.text(max_size=5), st.sampled_from(["a.b", "a", "state", "param_groups", ""]), st.integers(-5, 2**70)
)

leaves = st.one_of(
    scalars,
    tensors(),
    arrays(),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=256, max_size=300),
    st.lists(st.floats(), min_size=256, max_size=260).map(tuple),
)

states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal in type, order and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        bits = np.array_equal(words_of(a), words_of(b))
        return a.dtype == b.dtype and a.shape == b.shape and bits
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)
