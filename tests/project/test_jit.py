"""Where compiled kernels cannot be kept on disk they still compile; the user is told once."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from dynaquant_core import jit

#: Code without a file: Numba has no place for what it compiles of it.
SOURCE = "def double(out):\n    for index in range(out.size):\n        out[index] *= 2\n"


def test_kernels_compile_where_no_folder_can_keep_them(caplog: pytest.LogCaptureFixture) -> None:
    scope: dict = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), scope)
    jit._tell.cache_clear()
    with caplog.at_level(logging.WARNING):
        kernels = [jit.kernel(scope["double"]) for _ in range(2)]
    numbers = np.ones(3)
    for kernel in kernels:
        kernel(numbers)
    assert numbers.tolist() == [4.0, 4.0, 4.0]
    assert sum("NUMBA_CACHE_DIR" in record.message for record in caplog.records) == 1
