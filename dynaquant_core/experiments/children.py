"""The processes of an experiment: begun in turn or side by side, and all ended by one call."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from dynaquant_core.errors import ExperimentError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NUMBER", "Child", "Children"]

#: Number and exit status of a child, as a server sends them.
NUMBER = struct.Struct("=q")


class Child:
    """One process, forked by `forkserver`.

    Args:
        output: its standard output.
        status: the socket of this child, where its number was said.

    Attributes:
        output: lines of text; ends when the process does.  To be closed.
    """

    def __init__(self, output: TextIO, status: socket.socket) -> None:
        self.output = output
        self._status = status
        self._code: int | None = None

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed.  Without effect on one that has ended."""
        with suppress(OSError):
            self._status.send(b"k")

    def wait(self) -> int | None:
        """Waits for its end; its exit status, of a signal the negative number.  May be asked again.

        Returns:
            None where nothing is known: the server has ended, and the child with it.
        """
        if self._status.fileno() >= 0:
            self._code = received(self._status)
            self._status.close()
        return self._code


def received(status: socket.socket) -> int | None:
    """The next number that a server says of a child; None where it has ended."""
    with suppress(OSError):
        data = status.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(data) == NUMBER.size:
            return int(NUMBER.unpack(data)[0])
    return None


class Children:
    """The processes that are at work, so that one call ends them all; any thread may use it.

    The first child of an environment takes as long as its imports.  Every other one begins at once, forked by
    the server that the first had to wait for.  On leaving, the servers end, and whatever is still at work.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryFile() as log, Children() as children:
        ...     child = children.start(["nowhere"], log, os.environ)
        ...     with child.output as said:
        ...         print(next(said)[:60], child.wait())
        {"event": "error", "message": "nowhere/job.json: no job of a 1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the two below; held for moments
        self._servers: dict[str, _Server] = {}
        self._stopped = False
        self._turn = threading.Lock()  # of those who start; held for as long as that takes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for server in self._servers.values():
            server.wait()

    def start(self, arguments: Sequence[str], error: BinaryIO, environment: Mapping[str, str]) -> Child:
        """Begins a process in the current directory.

        Args:
            arguments: of `process`.
            error: takes its standard error.
            environment: of the process.

        Raises:
            ExperimentError: everything was stopped, or no process can be begun.
        """
        with self._turn:
            for _ in range(2):  # a server may have ended after the last child that it forked
                server = self._server(error, environment)
                child = server.fork(arguments, error)
                if child is not None:
                    return child
                code = server.wait()
        raise ExperimentError(
            f"no process can be started: the one that forks them ended with code {code}; its log is "
            f"{error.name}."
        )

    def stop(self) -> None:
        """Kills all of them; none can be started any more."""
        with self._lock:
            self._stopped = True
            for server in self._servers.values():
                server.stop()

    def _server(self, error: BinaryIO, environment: Mapping[str, str]) -> _Server:
        """Of an environment: it decides how libraries are loaded."""
        key = json.dumps([str(Path.cwd()), sorted(environment.items())])
        with self._lock:
            if self._stopped:
                raise ExperimentError("the experiment was stopped; a later run goes on with it.")
            if key in self._servers and not self._servers[key].living:
                self._servers.pop(key).wait()
            if key not in self._servers:
                self._servers[key] = _Server(error, environment)
            return self._servers[key]


class _Server:
    """A process of `forkserver`.

    Args:
        error: takes what it says itself.
        environment: of it and of all that it forks.
    """

    def __init__(self, error: BinaryIO, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair()
        command = [sys.executable, "-m", "dynaquant_core.experiments.forkserver", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, a module of this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=error,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    @property
    def living(self) -> bool:
        """Whether it can fork, as far as is known."""
        return self._process.poll() is None

    def fork(self, arguments: Sequence[str], error: BinaryIO) -> Child | None:
        """Begins a process, which has begun on return; None where this server has ended."""
        status, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with theirs, suppress(OSError):
            socket.send_fds(
                self._requests,
                [json.dumps(arguments).encode()],
                [writing, error.fileno(), theirs.fileno()],
            )
        os.close(writing)
        if received(status) is None:
            os.close(reading)
            status.close()
            return None
        return Child(open(reading, encoding="utf-8", errors="replace"), status)  # noqa: PTH123 - a pipe

    def stop(self) -> None:
        """It kills what it forked, and ends."""
        with suppress(OSError):
            self._requests.shutdown(socket.SHUT_WR)

    def wait(self) -> int:
        """Until it has ended; its exit status."""
        code = self._process.wait()
        self._requests.close()
        return code
