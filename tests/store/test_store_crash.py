"""A process killed at any operation loses nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kill_shim import report_of
from tests.store.crash_runner import SCENARIOS
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, leftovers, small_state

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_every_operation(tmp_path: Path, scenario: str) -> None:
    operations = report_of("tests.store.crash_runner", scenario, tmp_path)["operations"]
    assert {"open", "write", "fsync", "replace"} <= set(operations)


SAVE = """
import sys
from pathlib import Path
from tests.store.kit import exact_store, small_state
store = exact_store(Path(sys.argv[1]), max_chain=2, keep_last=1)
store.load()
store.save(40, small_state(40))
"""


@pytest.mark.parametrize(
    "call",
    [
        "fsync:signal=KILL:when=1",
        "fsync:signal=KILL:when=2",
        "rename:signal=KILL",
        "unlink:signal=KILL:when=2",
    ],
)
def test_a_kill_by_the_system_itself(tmp_path: Path, call: str) -> None:
    """The same with the real system calls, so that the sweep's own shim is not all that is believed."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    store = tmp_path / "store"
    filled(store)
    name = call.partition(":")[0]
    names = {"rename": "rename,renameat,renameat2", "unlink": "unlink,unlinkat"}.get(name, name)
    inject = f"inject={names}{call[len(name) :]}"
    command = [strace, "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", f"trace={names}", "-e", inject]
    command += [sys.executable, "-c", SAVE, str(store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode != 0, "nothing was killed"
    fresh = exact_store(store)
    assert all(is_same(fresh.load(step), small_state(step)) for step in fresh.steps())
    assert fresh.newest().step >= 30
    fresh.load()
    fresh.save(50, small_state(50))
    assert leftovers(store) == []
    assert checkpoint_files(store)
