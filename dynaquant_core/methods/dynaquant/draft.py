"""One candidate: cuts and codebooks fitted from counts, codes assigned only when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.coding import encode_smallest
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.config import Config, DynaQuantOptions
from dynaquant_core.lazy import lazy
from dynaquant_core.methods.base import Reference, Stream
from dynaquant_core.methods.dynaquant.book import WORDS, Book
from dynaquant_core.methods.dynaquant.dithered import by_place, drawn_contexts, levels_of
from dynaquant_core.methods.dynaquant.held import Coded, CodeRoom, Held, Scope
from dynaquant_core.methods.dynaquant.layout import Layout, Row, write_array
from dynaquant_core.methods.dynaquant.plain import word_stream
from dynaquant_core.methods.dynaquant.predict import drawn_bytes, predicted_bytes, stream_bytes
from dynaquant_core.methods.dynaquant.protected import base_patterns, write_protected
from dynaquant_core.methods.dynaquant.sample import sample, stride_of
from dynaquant_core.methods.dynaquant.survey import Survey
from dynaquant_core.methods.words import Plain, plain_of
from dynaquant_core.quantize.cut import PROTECTED, Cut
from dynaquant_core.quantize.dither import assign_dithered
from dynaquant_core.quantize.lattice import offset_key
from dynaquant_core.quantize.seam import assign
from dynaquant_core.state.spec import TensorSpec
from dynaquant_core.threads import map_threads

__all__ = ["CodesDraft", "code_candidates"]

#: Codecs of the shared streams (float32 centres, bfloat16 protected weights).
ARRAY_CODECS = ("raw", "zstd", "planes")


def code_candidates(coder: str, *, has_base: bool) -> tuple[str, ...]:
    """Names of the codecs that may carry codes; ``coder="paper"`` forces paper sec. 6."""
    if coder == "paper":
        return ("paper",) if has_base else ("huffman", "rle_huffman")
    if has_base:
        return ("same", "constant", "rans", "rans_context", "planes_xor", "raw")
    return ("constant", "rans", "zstd", "raw")


class CodesDraft:
    """A draft of quantised tensors; see `methods.base.Draft`.

    Args:
        config: the point of the cube.
        survey: sketches of this save; dropped by `detach`.
        cuts, books: thresholds and codebook of every tensor.
        scope: the chain's codebook scope.
        shared: the shared centres, or None.
        ref: the base's codes; None for a key checkpoint.
        options: the method's options.
    """

    def __init__(
        self,
        config: Config,
        survey: Survey,
        cuts: Mapping[str, Cut],
        books: Mapping[str, Book],
        *,
        scope: Scope,
        shared: NDArray[np.float32] | None,
        ref: Held | None,
        options: DynaQuantOptions,
    ) -> None:
        self.config, self.cuts, self.books, self.options = config, cuts, books, options
        self.scope, self.shared, self.ref = scope, shared, ref
        self.is_key = ref is None
        self.specs: dict[str, TensorSpec] = {
            name: TensorSpec.of(tensor) for name, tensor in survey.state.items()
        }
        self._total = sum(spec.numel for spec in self.specs.values())
        self._survey: Survey | None = survey
        self._epoch = survey.epoch
        #: The epoch of the draws where a reader is told it, for the contexts of its coder.
        self._told = survey.epoch if ref is not None and options.coder != "paper" else None
        self._coded: dict[str, Coded | Plain] = {}
        self._room = CodeRoom(self.specs)

    @lazy
    def size(self) -> int:
        """Bytes of all streams, from counts (within 2%): of codes where they exist, else of sketches."""
        own = sum(4 * book.centres.size for book in self.books.values() if book.source == "own")
        shared = 0 if self.shared is None else 4 * self.shared.size
        bodies = map_threads(self._predict, list(self.books))
        return int(sum(bodies) + own + shared + self._layout_size())

    def _predict(self, name: str) -> float:
        if name not in self._coded:
            assert self._survey is not None
            return predicted_bytes(self._survey, name, self.cuts[name], self.books[name])
        held, base = self._coded[name], None if self.ref is None else self.ref.coded(name)
        if isinstance(held, Plain):
            return len(word_stream(name, held, self.ref).payload)
        stride = stride_of(held.codes.size, self._total)
        codes = sample(held.codes, stride)
        told = None if base is None else self._told
        if base is None:
            joint = joint_counts(codes, None)
        elif told is None:
            joint = joint_counts(codes, sample(base.codes, stride))
        else:
            joint = by_place(joint_counts(codes, drawn_contexts(base, told, name, stride)))
        joint = np.rint(joint * (held.codes.size / max(1, codes.size))).astype(np.int64)
        protected = len(self._protected_stream(name, held).payload) if held.protected.size else 0
        predict = stream_bytes if told is None else drawn_bytes
        return protected + predict(joint, has_base=base is not None, coder=self.options.coder)

    def _layout_size(self) -> int:
        return 40 + 2 * len(self.books) + (0 if self._told is None else 4)

    @property
    @plainly
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        state = self._survey.state if self._survey is not None else {}
        for name in self.books:
            device = state[name].device if name in state else torch.device("cpu")
            yield name, self._code(name).tensor(device)

    def _code(self, name: str) -> Coded | Plain:
        """Codes of one tensor, assigned on first use (paper 4.2, 4.3); or its words, where none serve."""
        if name not in self._coded and self.books[name] is WORDS:
            assert self._survey is not None
            self._coded[name] = plain_of(self._survey.state[name], bf16=False)
        if name not in self._coded:
            assert self._survey is not None
            survey, book = self._survey, self.books[name]
            buckets = survey.buckets(signed=True)
            tensor, slope, cut, out = (
                survey.state[name],
                survey.gradients.get(name),
                self.cuts[name],
                self._room[name],
            )
            if self._epoch is None:
                codes, protected = assign(
                    tensor, slope, cut, survey.lookup(name, book.centres), buckets, out=out
                )
            else:
                levels, key = levels_of(survey, name, cut, book.centres), offset_key(self._epoch, name)
                codes, protected = assign_dithered(tensor, slope, cut, levels, buckets, key, out=out)
            self._coded[name] = Coded(self.specs[name], codes, book.centres, protected)
        return self._coded[name]

    def detach(self) -> None:
        """Assigns every code that is still missing and lets go of the live tensors."""
        if self._survey is not None:
            names = list(self.books)
            self._coded = dict(zip(names, map_threads(self._code, names), strict=True))
            self._survey = None

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams (shared ones first, then a tensor's codes one by one) and what a reader then holds."""
        self.detach()
        return self._streams(), Held(self._coded, self.scope, self.shared, epoch=self._epoch)

    def _streams(self) -> Iterator[Stream]:
        layout = self._layout()
        yield layout.stream()
        if self._told is not None:
            yield write_array("epoch", np.array([self._told], dtype=np.uint32), ("raw",))
        own = [book.centres for book in self.books.values() if book.source == "own"]
        centres = [self.shared, *own] if self.shared is not None else own
        if layout.centre_count:
            yield write_array("centres", np.concatenate(centres), ARRAY_CODECS)
        for batch in batches(list(self._coded)):
            for streams in map_threads(self._tensor_streams, batch):
                yield from streams

    def _tensor_streams(self, name: str) -> list[Stream]:
        held, base = self._coded[name], None if self.ref is None else self.ref.coded(name)
        if isinstance(held, Plain):
            return [word_stream(name, held, self.ref)]
        context = None if base is None else base.codes
        candidates = code_candidates(self.options.coder, has_base=context is not None)
        codes = Stream(name, "codes", *encode_smallest(held.codes, context, candidates))
        if self._told is not None and base is not None and codes.payload:
            known = drawn_contexts(base, self._told, name)
            drawn = Stream(name, "drawn", *encode_smallest(held.codes, known, ("rans_context",)))
            codes = min(codes, drawn, key=lambda stream: len(stream.payload))
        return [codes, self._protected_stream(name, held)] if held.protected.size else [codes]

    def _protected_stream(self, name: str, held: Coded) -> Stream:
        base = None if self.ref is None else self.ref.coded(name)
        before = None
        if base is not None and self.options.coder != "paper":
            before = base_patterns(base, np.flatnonzero(held.codes == PROTECTED))
        return write_protected(name, held.protected, before)

    def _layout(self) -> Layout:
        letters = {"own": "o", "base": "b", "shared": "s", "words": "e"}
        rows = [Row(letters[book.source], book.centres.size) for book in self.books.values()]
        return Layout(rows, 0 if self.shared is None else int(self.shared.size), self.scope)


def batches(names: list[str], length: int = 8) -> Iterator[list[str]]:
    """Splits names so that only a few encoded streams wait in memory at a time."""
    for start in range(0, len(names), length):
        yield names[start : start + length]
