"""Open files: a long chain takes one a link, and a process is often allowed 1024.

What a process may have is a soft limit, which it may raise itself up to a hard one.  So a chain that comes
close to it raises it, and puts it back when it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from contextlib import ExitStack
from typing import Final

__all__ = ["is_out_of_means", "make_room"]

#: Descriptors that others are left: those of libraries, of compiled kernels that are loaded on the way.
HEADROOM: Final = 128

#: By how many the limit is raised at a time.
MORE: Final = 1024

#: What a process, or the whole system, has run out of; no file is to blame.
OUT_OF_MEANS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def make_room(descriptor: int, stack: ExitStack) -> None:
    """Raises the soft limit where ``descriptor`` comes close to it; where it cannot be, nothing happens.

    Args:
        descriptor: of a file that was opened just now.
        stack: when it is closed, the limit is what it was.

    Example:
        >>> with ExitStack() as stack:
        ...     make_room(3, stack)
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or descriptor + HEADROOM < soft:
        return
    raised = soft + MORE if hard == resource.RLIM_INFINITY else min(soft + MORE, hard)
    if raised > soft and _set(raised, hard):
        stack.callback(_put_back, soft, raised)


def is_out_of_means(error: BaseException) -> bool:
    """Whether the process or the system had too little left to read a file that may be whole.

    Example:
        >>> is_out_of_means(OSError(errno.EMFILE, "too many")), is_out_of_means(OSError(errno.EIO, "disk"))
        (True, False)
    """
    causes = (error, error.__cause__)
    return any(isinstance(one, OSError) and one.errno in OUT_OF_MEANS for one in causes)


def _put_back(soft: int, raised: int) -> None:
    """What another has set meanwhile stays."""
    now, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == raised:
        _set(soft, hard)


def _set(soft: int, hard: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return True
    return False
