"""Every kernel for a CUDA device compiles, without one: what the interpreter lets through can fail there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dynaquant_core
from tests.triton_here import require_interpreter

ROOT = Path(dynaquant_core.__file__).parent
STARTED = re.compile(r"(?:kernels\.|\b)(\w+)\[(?:\(|programs\()")

#: Those that say so: torch's own addition with a factor, whose bits `_gather` has, is one operation.
FUSED = {"_gather"}


def started():
    """Names of the kernels that are started anywhere."""
    texts = [path.read_text() for path in sorted(ROOT.rglob("*.py"))]
    kernels = {name for text in texts for name in re.findall(r"@triton\.jit[^\n]*\ndef (\w+)", text)}
    return kernels & {name for text in texts for name in STARTED.findall(text)}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What `compile_kernels` prints."""
    require_interpreter()
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    kept["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.compile_kernels"],
        env=kept, cwd=ROOT.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_kernel_that_is_started_is_compiled(compiled):
    names = {one["name"] for one in compiled}
    assert names == started()
    assert len(names) >= 15


#: Where all kernels are looked at by a trial before they work.
TRIED = [f"quantize.device.{name}_kernels" for name in ("cell", "dither", "lattice")]
TRIED.append("memory.samo.device_kernels")


def test_what_works_is_what_was_tried(compiled):
    """Triton compiles kernels apart for dtypes, switches, and for sizes and addresses divisible by 16."""
    ours = [one for one in compiled if one["module"] in TRIED]
    tried, worked = (
        {(one["module"], one["name"], one["code"]) for one in ours if one["tried"] is by_trial}
        for by_trial in (True, False)
    )
    assert {name for _, name, _ in worked} >= {"count", "joint", "quantise", "_gather", "_scatter"}
    assert not worked - tried


def test_no_kernel_fuses_operations_or_flushes_small_numbers(compiled):
    """Both would give other bits than the CPU's."""
    assert not [one for one in compiled if one["flushed"]]
    assert {one["name"] for one in compiled if one["fused"]} <= FUSED
