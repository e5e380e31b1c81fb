"""Where compiled kernels cannot be kept on disk they still compile; the user is told once."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


HELPER = """
from dynaquant_core.jit import kernel

@kernel
def moved(number):
    return number + 1
"""
CALLER = """
from dynaquant_core.helper_kernels import moved
from dynaquant_core.jit import kernel

@kernel
def move(out):
    for index in range(out.size):
        out[index] = moved(out[index])
"""
PROGRAM = """
import numpy as np
from dynaquant_core.kernels import move
out = np.zeros(1)
move(out)
print(int(out[0]), sum(move.stats.cache_hits.values()))
"""


def test_a_kernel_is_compiled_anew_where_a_file_with_one_that_it_calls_changes(tmp_path: Path) -> None:
    """Numba looks at the file of the kernel alone: after an update old code was run, without a word."""
    package = tmp_path / "dynaquant_core"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(jit.__file__, package)
    (package / "kernels.py").write_text(CALLER)
    env = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_")}

    def said(helper: str) -> str:
        (package / "helper_kernels.py").write_text(helper)
        environment = env | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        # Not by tests/programs.py, whose processes have imported the package already.
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert said(HELPER) == "1 0\n"
    assert said(HELPER) == "1 1\n"
    assert said(HELPER.replace("+ 1", "+ 2")) == "2 0\n"
    assert said(HELPER.replace("+ 1", "+ 2")) == "2 1\n"
