"""A process that has imported everything and forks: ``python -m dynaquant_core.experiments.forkserver FD``.

Half of the seconds of a short life go into imports (torch and its compiler, which every optimizer asks for).
They are done once here; each life is a process of its own all the same, with nothing in it that any life
before it made: this process imports, waits, forks, and never trains.

The socket FD brings one request a child: the arguments of `process`, and three descriptors, of its standard
output, its standard error, and a socket of this child alone.  Over that one its number comes back, and its
exit status when it has ended.  Whatever is said there, or its end, is an order to kill the child.  Children
are waited for here and nowhere else, so an order never reaches another process that got the same number.
When the other end of FD is gone, all of them are killed.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from dynaquant_core.experiments import process
from dynaquant_core.experiments.children import NUMBER

__all__ = ["main"]

#: What a training imports once it makes its optimizer; a second or two.
LATE = "torch._dynamo"


def main(arguments: Sequence[str]) -> NoReturn:
    """Forks until the other end is gone; in a child, does its job."""
    code = 1
    try:
        importlib.import_module(LATE)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: whoever asked for children decides
        job = _Server(socket.socket(fileno=int(arguments[0]))).serve()
        code = 0 if job is None else process.main(job)
    except BaseException:  # noqa: BLE001 - said, and the end of this process
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as forked processes do: taking torch down with care takes a second, and nothing is open


class _Server:
    """Waits for requests, for orders to kill, and for children that end.

    Args:
        requests: FD.
    """

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, socket.socket] = {}  # by process number
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._ended, self._wake = os.pipe()
        for end in (self._ended, self._wake):
            os.set_blocking(end, False)
        self._selector.register(self._ended, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler no signal wakes

    def serve(self) -> list[str] | None:
        """Returns in each child, with its arguments; in this process at the end, with None."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._requests:
                    message, descriptors, _, _ = socket.recv_fds(self._requests, 1 << 16, 3)
                    if not message:
                        self._kill_all()
                        return None
                    job = self._fork(json.loads(message), descriptors)
                    if job is not None:
                        return job
                elif key.fileobj == self._ended:
                    os.read(self._ended, 1 << 16)
                    self._reap()
                elif key.data in self._children:  # else reaped a moment ago, in this very round
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)

    def _fork(self, job: list[str], descriptors: Sequence[int]) -> list[str] | None:
        """Its arguments in the child, None here."""
        output, error, status = descriptors
        server = os.getpid()
        number = os.fork()
        if number == 0:
            self._become_child()
            os.dup2(output, 1)
            os.dup2(error, 2)
        for descriptor in (output, error):
            os.close(descriptor)
        if number == 0:
            os.close(status)
            return [*job, "--parent", str(server)]
        self._children[number] = socket.socket(fileno=status)
        self._selector.register(self._children[number], selectors.EVENT_READ, number)
        _send(self._children[number], number)
        return None

    def _become_child(self) -> None:
        """Lets go of everything that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        self._requests.close()
        for status in self._children.values():
            status.close()
        os.close(self._ended)
        os.close(self._wake)

    def _reap(self, options: int = os.WNOHANG) -> None:
        """Sends the exit status of each child that has ended."""
        while self._children:
            number, status = os.waitpid(-1, options)
            if number == 0:
                return
            child = self._children.pop(number)
            if child in self._selector.get_map():
                self._selector.unregister(child)
            _send(child, os.waitstatus_to_exitcode(status))
            child.close()

    def _kill_all(self) -> None:
        for number in self._children:
            os.kill(number, signal.SIGKILL)
        self._reap(options=0)


def _send(child: socket.socket, number: int) -> None:
    try:
        child.send(NUMBER.pack(number))
    except OSError:  # nobody listens any more
        return


if __name__ == "__main__":
    main(sys.argv[1:])
