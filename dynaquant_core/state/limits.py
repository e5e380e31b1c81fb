"""How much memory this process may have: of the machine, its container, or its own limit."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SURE", "memory_limit"]

#: Bytes that every process may have: for so much nobody needs to ask.
SURE = 1 << 26

#: Where the system says which control groups a process is in, what they allow, and what it has itself.
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
OWN_SIZES, MACHINE = Path("/proc/self/statm"), Path("/proc/meminfo")


def memory_limit() -> int:
    """Bytes that a process can have at most, whatever others leave of them; swap counts.

    The least of the machine's memory, of what its control groups allow (of version 1 and 2, with all above)
    and of what `RLIMIT_AS` leaves.

    Example:
        >>> memory_limit() > 1 << 20
        True
    """
    swap = _swap()
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + swap]
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    if own != resource.RLIM_INFINITY:
        limits.append(max(0, own - _mapped()))
    return min([*limits, *_allowed(swap)])


def _allowed(swap: int) -> Iterator[int]:
    """What each of the control groups allows; one that is not shown to this process allows all."""
    for line in _text(OWN_GROUPS).splitlines():
        kinds, _, path = line.partition(":")[2].partition(":")
        # Inside of a container paths may be the host's: its own group then lies at the root.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        above = [Path(*parts[:depth]) for depth in range(len(parts) + 1)]
        if not kinds:
            for group in (root / each for root in (GROUPS, GROUPS / "unified") for each in above):
                most = _number(group / "memory.max")
                if most is not None:
                    more = _number(group / "memory.swap.max")
                    yield most + (swap if more is None else min(more, swap))
        elif "memory" in kinds.split(","):
            for group in (GROUPS / "memory" / each for each in above):
                most = _number(group / "memory.limit_in_bytes")
                both = _number(group / "memory.memsw.limit_in_bytes")
                yield from (each for each in (most and most + swap, both) if each is not None)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max": no limit


def _swap() -> int:
    for line in _text(MACHINE).splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) << 10
    return 0


def _mapped() -> int:
    """Bytes of addresses that this process has already."""
    sizes = _text(OWN_SIZES).split()
    return int(sizes[0]) * os.sysconf("SC_PAGE_SIZE") if sizes else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # another system, or a container that does not show it
        return ""
