"""Processes of an experiment: forked by one that only imports, and ended whatever happens to whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.children import Child, Children
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.supervisor import Progress, complete
from tests.kill_shim import ONE_THREAD
from tests.programs import children_that_run

SERVER = "dynaquant_core.experiments.forkserver"


@pytest.fixture
def log(workplace: Path) -> Iterator[BinaryIO]:
    """Takes what processes say on their standard error."""
    with (workplace / "log").open("ab") as file:
        yield file


@pytest.fixture
def endless(tiny_file: Path) -> str:
    """Folder of a job that is at work for as long as a test."""
    Job(Path("endless"), expand(load_experiment(tiny_file, ["steps=100000"]))[0], saves=False).write()
    return "endless"


def begun(children: Children, folder: str, log: BinaryIO) -> Child:
    """A child that trains."""
    child = children.start([folder], log, os.environ)
    assert json.loads(next(child.output))["event"] == "start"
    return child


def ended(child: Child) -> int | None:
    """Its exit status, after all that it said."""
    with child.output as said:
        list(said)
    return child.wait()


def test_one_is_killed_and_the_others_go_on(endless: str, log: BinaryIO) -> None:
    with Children() as children:
        first, second = begun(children, endless, log), begun(children, endless, log)
        first.kill()
        assert ended(first) == first.wait() == -signal.SIGKILL
        first.kill()  # nobody gets hurt
        assert json.loads(next(second.output))["event"] == "progress"
        refused = children.start(["nowhere"], log, os.environ)
        with refused.output as said:
            assert "nowhere/job.json: no job" in json.loads(next(said))["message"]
        assert refused.wait() == 1
    assert ended(second) == -signal.SIGKILL  # on leaving


def test_stop_ends_all_and_nothing_begins_after_it(endless: str, log: BinaryIO) -> None:
    with Children() as children:
        child = begun(children, endless, log)
        children.stop()
        assert ended(child) == -signal.SIGKILL
        with pytest.raises(ExperimentError, match="was stopped"):
            children.start([endless], log, os.environ)


def test_stop_need_not_wait_for_one_that_begins(endless: str, log: BinaryIO) -> None:
    codes: list[int | None] = []
    with Children() as children:
        waiting = threading.Thread(
            target=lambda: codes.append(ended(children.start([endless], log, os.environ)))
        )
        waiting.start()
        time.sleep(0.5)  # its server imports torch
        before = time.monotonic()
        children.stop()
        assert time.monotonic() - before < 1
        waiting.join()
    assert codes == [-signal.SIGKILL]


def test_a_server_that_dies_takes_its_children_along_and_is_replaced(endless: str, log: BinaryIO) -> None:
    with Children() as children:
        child = begun(children, endless, log)
        (server,) = children_that_run(SERVER)
        server.kill()
        assert ended(child) is None
        deadline = time.monotonic() + 30
        while "the parent is gone" not in Path("log").read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        other = begun(children, endless, log)
    assert ended(other) == -signal.SIGKILL


def test_a_run_whose_server_dies_says_so_and_goes_on_later(tiny_file: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.step > 10:
            for server in children_that_run(SERVER):
                server.kill()

    job = Job(Path("out"), expand(load_experiment(tiny_file, ["steps=100000"]))[0], saves=False)
    job.write()
    with pytest.raises(ExperimentError, match=r"^mine: .* killed the one that forked it .*; its log is out/"):
        complete(job, (), "mine", kill)


def test_a_server_that_cannot_begin_is_one_clear_error(
    log: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Children() as children, pytest.raises(ExperimentError, match=r"no process can be started.* code 1;"):
        children.start(["nowhere"], log, os.environ)


#: A child has ended, and the order to kill it comes before its server has looked: news first, then the order.
BOTH_AT_ONCE = """
import os, selectors, socket, time
from dynaquant_core.experiments.forkserver import _Server
ours, theirs = socket.socketpair()
server = _Server(theirs)
status, end = socket.socketpair()
number = os.fork()
if number == 0:
    os._exit(3)
server._children[number] = end
server._selector.register(end, selectors.EVENT_READ, number)
time.sleep(0.3)
status.send(b"k")
ours.shutdown(socket.SHUT_WR)
assert server.serve() is None
assert int.from_bytes(status.recv(8), "little") == 3
"""


def test_an_order_to_kill_one_who_has_just_ended_hurts_nobody() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": path, **ONE_THREAD}
    subprocess.run([sys.executable, "-c", BOTH_AT_ONCE], env=environment, check=True, timeout=120)


def test_each_has_its_environment_and_its_current_directory(
    tiny_file: Path, log: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job(Path("here"), expand(load_experiment(tiny_file))[0], saves=False).write()
    with Children() as children:
        for root, code in ((os.environ["DYNAQUANT_DATA"], 0), ("nowhere", 1)):
            assert ended(children.start(["here"], log, os.environ | {"DYNAQUANT_DATA": root})) == code
            Path("here/events.jsonl").unlink(missing_ok=True)
        monkeypatch.chdir("here")
        assert ended(children.start(["."], log, os.environ)) == 0
