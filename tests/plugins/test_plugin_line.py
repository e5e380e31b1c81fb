"""Jobs in the background: in order, and what happens behind one that fails."""

from __future__ import annotations

import os
import threading

import pytest

from dynaquant_core.errors import SaveError
from dynaquant_core.plugins.line import Line


def test_jobs_run_in_order_and_off_this_thread():
    line, done, gate = Line(), [], threading.Event()
    line.put("first", lambda: (gate.wait(10), done.append(threading.current_thread().name)))
    for number in range(5):
        line.put("next", lambda number=number: done.append(number))
    assert not line.idle
    assert done == []
    gate.set()
    line.wait()
    assert done == ["dynaquant-save", 0, 1, 2, 3, 4]
    assert line.idle


def test_what_waits_behind_a_failure_is_dropped_and_told_once(caplog):
    line, done, gate = Line(), [], threading.Event()

    def fail():
        gate.wait(10)
        raise OSError("disk full")

    line.put("the save", fail)
    line.put("the removal", lambda: done.append("removed"))
    gate.set()
    line.join()
    line.put("another removal", lambda: done.append("removed"))
    assert not line.idle
    with pytest.raises(SaveError, match="disk full"):
        line.wait()
    line.wait()
    assert done == []
    assert caplog.text.count("not done, as a save before it failed") == 2
    line.put("the next", lambda: done.append("saved"))
    line.wait()
    assert done == ["saved"]


def test_a_process_that_ends_without_waiting_finishes_its_writes(tmp_path):
    import subprocess
    import sys

    code = (
        "import time\n"
        "from pathlib import Path\n"
        "from dynaquant_core.plugins.line import Line\n"
        "line = Line()\n"
        "line.put('slow', lambda: time.sleep(0.3))\n"
        f"line.put('write', lambda: Path({str(tmp_path / 'done')!r}).touch())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert (tmp_path / "done").exists()


def test_a_forked_child_does_not_wait_for_jobs_of_its_parent():
    line, gate = Line(), threading.Event()
    line.put("the save", lambda: gate.wait(20))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            line.wait()
            done = []
            line.put("its own", lambda: done.append(1))
            line.wait()
            status = 0 if done == [1] and line.idle else 2
        finally:
            os._exit(status)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        gate.set()
        line.wait()
