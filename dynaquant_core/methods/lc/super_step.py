"""Several links of a chain merged into one (the paper's super step), so that a restore reads fewer."""

from __future__ import annotations

from collections.abc import Sequence

from dynaquant_core.coding.prefix import code_lengths
from dynaquant_core.config import require
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.lc.links import Coded, Tracked, read_link, read_tracked, whole_streams
from dynaquant_core.methods.pooling import read_layout, write_layout
from dynaquant_core.methods.tensorwise import CODED, WORDS, TensorsHeld, expect_base, read_words
from dynaquant_core.quantize.exponent import Link, advanced, merged
from dynaquant_core.state import TensorSpec
from dynaquant_core.threads import map_threads

__all__ = ["super_step"]


def super_step(links: Sequence[StreamSource], base: TensorsHeld[Tracked], *, huffman: bool) -> list[Stream]:
    """The streams of one link; see `Lc.merge`.

    Raises:
        ConfigError: there is no link.
        CorruptFileError: they are not what the method writes.
        MissingBaseError: the first stands on something that ``base`` does not hold.
    """
    require(len(links) > 0, "method lc: there is no link to merge.")
    places = [read_layout(link, WORDS) for link in links]

    def merge(name: str) -> list[Stream]:
        spec, held = links[0].specs[name], base.of(name, links[0].specs[name])
        joined, last = _followed(links[0], places[0][name], name, spec, held)
        for source, place in zip(links[1:], places[1:], strict=True):  # codes of two links in memory, not all
            change, last = _followed(source, place[name], name, spec, last)
            joined = None if joined is None or change is None else merged([joined, change])
        if joined is None:
            return list(whole_streams(name, expect_base(last, name), spec))
        after = _after(joined, expect_base(held, name), expect_base(last, name), huffman=huffman)
        return list(after.streams(name))

    streams = map_threads(merge, list(links[0].specs))
    return [write_layout([CODED] * len(streams)), *(stream for own in streams for stream in own)]


def _followed(
    source: StreamSource, place: int, name: str, spec: TensorSpec, held: Tracked | None
) -> tuple[Link | None, Tracked]:
    """A tensor's change and what is held after it; no change where the link has the tensor whole."""
    if place == WORDS:
        return None, Tracked(read_words(source, name, spec).tensor().reshape(-1), {})
    if source.has(name, "whole"):
        return None, read_tracked(source, name, spec, None)
    base = expect_base(held, name)
    change, tables = read_link(source, name, spec.numel, base.tables)
    return change, Tracked(advanced(base.values, change), tables)


def _after(joined: Link, base: Tracked, last: Tracked, *, huffman: bool) -> Coded:
    """The merged change, with all tables that the last link's reader holds and, if they lack it, its own."""
    own = {joined.buckets: code_lengths(joined.counts)} if huffman and joined.buckets > 1 else {}
    return Coded(joined, base, {**own, **last.tables}, huffman)
