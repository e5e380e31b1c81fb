"""Python programs in processes of their own that need not import torch, and a framework, again.

Seconds of a short life go into imports, and tests kill hundreds of lives.  The standard library's server
imports once and forks; each program is a process as any other all the same, with nothing in it that another
one made, and a SIGKILL is one.  What a test asks of the interpreter itself (how it starts, how it ends, what
it imports) it asks of a real one.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import IO, Any
from unittest.mock import patch

import psutil
import torch
from typing_extensions import Self

from tests.project.tree import ROOT

CONTEXT = multiprocessing.get_context("forkserver")

#: What all of them import; `torch._dynamo` comes with every optimizer.
USUAL = ("torch._dynamo", "dynaquant_core.training", "dynaquant_core.plugins", "dynaquant_core.coding.choose")

_imported: set[str] = set()


class Program:
    """``python WORD...`` in a forked process; what of `subprocess.Popen` tests use.

    Args:
        words: "-m", a module and its arguments.
        env: the whole environment; of what libraries read as they are imported, the number of threads counts.
        needs: what to import before the fork.
    """

    def __init__(
        self, words: Sequence[object], *, env: Mapping[str, str] | None = None, needs: Sequence[str] = ()
    ) -> None:
        serve(needs)
        self.words = [str(word) for word in words]
        (read_out, out), (read_err, err) = CONTEXT.Pipe(duplex=False), CONTEXT.Pipe(duplex=False)
        given = dict(os.environ if env is None else env)
        self._process = CONTEXT.Process(target=_run, args=(self.words, given, out, err))
        self._process.start()
        out.close()
        err.close()
        self.stdout, self.stderr = _as_text(read_out), _as_text(read_err)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of `subprocess`: -9 where it was killed."""
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, if it lives."""
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Everything that it has still to say.

        Raises:
            AssertionError: it was still there; it is killed, which is no end of its own.  The message says
                where each of its threads stood.
        """
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.append(self.stderr.read()))
        late = threading.Event()
        watch = threading.Timer(timeout, lambda: (late.set(), self._end()))
        reader.start()
        watch.start()
        said = self.stdout.read()
        reader.join()
        self._process.join()
        watch.cancel()
        self.stdout.close()
        self.stderr.close()
        if late.is_set():
            raise AssertionError(f"{' '.join(self.words)}: alive after {timeout} s\n{said}\n{errors[0]}")
        return said, errors[0]

    def _end(self) -> None:
        """Has it say where it stands, then kills it."""
        os.kill(self.pid, signal.SIGUSR2)
        self._process.join(2)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.join()
        self.stdout.close()
        self.stderr.close()


def run(words: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text."""
    program = Program(words, **options)
    said, errors = program.communicate(timeout=500)
    assert program.returncode is not None
    return subprocess.CompletedProcess(program.words, program.returncode, said, errors)


def serve(needs: Sequence[str]) -> None:
    """A server that has imported what is needed; one that has not is ended, its children go on."""
    wanted = {*USUAL, *needs}
    if wanted <= _imported:
        return
    _imported.update(wanted)
    # It waits for the end of a pipe that forks of this process hold too, such as a loader's worker that a
    # test has not let go of.
    server = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
    server._stop()
    CONTEXT.set_forkserver_preload([*USUAL, *sorted(_imported.difference(USUAL))])
    paths = [str(ROOT), str(ROOT / "integrations"), os.environ.get("PYTHONPATH", "")]
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths))):
        forkserver.ensure_running()


def _as_text(reader: Connection) -> IO[str]:
    """A pipe's end as a file of text."""
    number = os.dup(reader.fileno())
    reader.close()
    return os.fdopen(number, encoding="utf-8", errors="replace")


def _run(words: list[str], env: dict[str, str], out: Connection, err: Connection) -> None:
    """In the process: becomes the program."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR2, file=2)
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    _, module, *arguments = words
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()


def children_that_run(module: str) -> list[psutil.Process]:
    """This process's living children that run a module; other tests may have left children of their own."""
    return [child for child in psutil.Process().children() if module in _words_of(child)]


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []
