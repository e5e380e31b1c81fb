"""Where a full chain goes on: once, a link in its middle takes a second line of deltas (ours).

A key takes five to ten times as much as a delta.  What a reader has to open is bounded by the length of its
own chain alone; so before a new key is written, the delta after a full chain builds on a link in the middle,
and those after it fill the chain again.

    max_chain=4:   key 1 2 3 4
                         └ 5 6   key ...

That delta spans more training than its neighbours, which costs less than a key does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dynaquant_core.store.meta import BaseLink
from dynaquant_core.store.parts import Base

__all__ = ["Branch"]


class Branch:
    """The link of the present chain that takes a second line, from when it is written until it has one.

    Args:
        max_chain: deltas between a checkpoint and its key, at most.

    Example:
        >>> branch, taken = Branch(4), []
        >>> depth = 0
        >>> for step in range(9):
        ...     base = Base(BaseLink(step, step, f"{step}"), depth, {}, 0, 0)
        ...     link = branch.after(base)
        ...     taken.append(link and link.step)
        ...     depth = 3 if link else (depth + 1) % 5
        >>> taken
        [None, None, None, None, 2, None, None, None, None]
    """

    def __init__(self, max_chain: int) -> None:
        self._max_chain = max_chain
        self._link: BaseLink | None = None

    def after(self, newest: Base) -> BaseLink | None:
        """Tells what was committed; returns what the next delta builds on instead, None where on this one."""
        if newest.depth == self._max_chain // 2:  # which those of the second line are deeper than
            self._link = newest.link
        if newest.depth < self._max_chain or self._link is None:
            return None
        link, self._link = self._link, None
        return link if link != newest.link else None

    def merged(self, chain: Sequence[BaseLink]) -> None:
        """Tells that links were merged: a middle that waits is now that of the chain as it is, key first."""
        if self._link is not None:
            middle = self._max_chain // 2
            self._link = chain[middle] if middle < len(chain) else None

    def forget(self, digests: Collection[str] | None = None) -> None:
        """Tells that these files cannot be built on any more; None: no file, for the run was restored."""
        if digests is None or (self._link is not None and self._link.digest in digests):
            self._link = None
