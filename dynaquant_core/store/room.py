"""Whether there is memory for what a file announces, asked before any of it is decoded.

A stream of equal values takes a few bytes for any number of them, so a small file may announce any size.
Tensors that fit one by one may not fit together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from dynaquant_core.errors import LimitError
from dynaquant_core.format import TensorEntry
from dynaquant_core.methods.moments import least_bytes
from dynaquant_core.state.limits import SURE, memory_limit
from dynaquant_core.store.meta import PartMeta

__all__ = ["require_room"]

#: Bytes that a value of other parts takes at least while it is held; of methods not named nothing is said.
HELD = {"lattice": 1.0, "dynaquant": 1.0}


def require_room(
    path: Path,
    entries: Collection[TensorEntry],
    parts: Mapping[str, PartMeta],
    *,
    whole: bool,
) -> None:
    """Refuses a checkpoint that takes more memory than this process can have.

    What is counted is taken in any case: another method may need more, and what others leave is not known.

    Args:
        path: of its file.
        entries: the tensors that are wanted of it.
        parts: how each part was written.
        whole: all of them are to be in host memory at once, beside what they are decoded from; else they are
            decoded one after another into memory that is there.

    Raises:
        LimitError: it does; nothing was allocated.
    """
    needed = sum(_held(entry, parts[entry.part].method) for entry in entries)
    if whole:
        needed += sum(entry.spec.nbytes for entry in entries)
    if needed <= SURE:
        return
    most = memory_limit()
    if needed > most:
        raise LimitError(
            f"{str(path)!r}: its {len(entries)} tensors take {int(needed)} bytes of memory, this process can "
            f"have {most}; the file is damaged, or must be loaded on a larger machine, with names=, or with "
            "load_into."
        )


def _held(entry: TensorEntry, method: str) -> float:
    """Bytes that are held of a tensor, at least, before it is a tensor."""
    if method == "exact":
        return entry.spec.nbytes
    share = least_bytes(method) if entry.part == "moments" else HELD.get(method, 0.0)
    return share * entry.spec.numel
