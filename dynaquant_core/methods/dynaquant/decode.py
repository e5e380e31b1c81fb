"""From streams back to codes, singly or in parallel, every announced size checked first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import StreamSource
from dynaquant_core.methods.dynaquant.dithered import drawn_contexts
from dynaquant_core.methods.dynaquant.held import Coded, CodeRoom, Held
from dynaquant_core.methods.dynaquant.layout import CODED, Layout, Row, read_array
from dynaquant_core.methods.dynaquant.protected import read_protected
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.codebook import FIRST_CENTRE
from dynaquant_core.state.raw import empty_words
from dynaquant_core.state.spec import TensorSpec
from dynaquant_core.threads import map_threads

__all__ = ["decode_streams"]


class Reader:
    """Decodes tensors of one checkpoint against what was held before."""

    def __init__(self, source: StreamSource, ref: Held | None, names: Iterable[str]) -> None:
        self.source, self.ref = source, ref
        self.layout = Layout.read(source)
        self.rows = dict(zip(source.specs, self.layout.rows, strict=True))
        self.centres = read_array(source, "centres", self.layout.centre_count, np.float32)
        self.shared = self.centres[: self.layout.shared_bins]
        self._starts = self._locate()
        self.room = CodeRoom({name: source.specs[name] for name in names if self.rows[name].book in CODED})

    def _locate(self) -> dict[str, int]:
        """Where each tensor's own centres start in the shared stream."""
        starts, start = {}, self.layout.shared_bins
        for name, row in self.rows.items():
            starts[name] = start
            start += row.bins if row.book == "o" else 0
        return starts

    def tensor(self, name: str) -> Coded | Plain:
        """Decodes one tensor."""
        spec, row = self.source.specs[name], self.rows[name]
        base = None if self.ref is None else self.ref.tensors.get(name)
        if base is not None and base.spec != spec:
            raise CorruptFileError(f"tensor {name}: {spec} does not fit its base {base.spec}.")
        return self._coded(name, spec, row, base) if row.book in CODED else self._plain(name, spec, row, base)

    def _coded(self, name: str, spec: TensorSpec, row: Row, base: Coded | Plain | None) -> Coded:
        centres = self._centres(name, row, base, self._starts[name])
        codes = self.room[name]
        known = base if isinstance(base, Coded) else None
        if self.source.has(name, "drawn"):
            decode_stream(self.source, name, "drawn", codes, self._contexts(name, known))
        else:
            decode_stream(self.source, name, "codes", codes, None if known is None else known.codes)
        highest = int(codes.max()) if codes.size else 0
        if highest >= FIRST_CENTRE + centres.size:
            raise CorruptFileError(f"tensor {name}: code {highest} does not fit {centres.size} centres.")
        return Coded(spec, codes, centres, read_protected(self.source, name, codes, known))

    def _contexts(self, name: str, base: Coded | None) -> NDArray[np.uint16]:
        if base is None:
            raise MissingBaseError(f"tensor {name}: its codes stand on those of a base, but none holds any.")
        return drawn_contexts(base, int(read_array(self.source, "epoch", 1, np.uint32)[0]), name)

    def _centres(self, name: str, row: Row, base: Coded | Plain | None, start: int) -> NDArray[np.float32]:
        if row.book == "o":
            centres = self.centres[start : start + row.bins]
        elif row.book == "s":
            centres = self.shared
        elif isinstance(base, Coded):
            centres = base.centres
        else:
            raise MissingBaseError(f"tensor {name}: uses its base's codebook, but no base holds one.")
        ascending = np.isfinite(centres).all() and (centres[1:] > centres[:-1]).all()
        if centres.size != row.bins or not ascending:
            raise CorruptFileError(f"tensor {name}: expected {row.bins} centres in ascending order.")
        return np.asarray(centres, dtype=np.float32)

    def _plain(self, name: str, spec: TensorSpec, row: Row, base: Coded | Plain | None) -> Plain:
        bf16 = row.book == "h"
        bits = empty_words(TensorSpec(spec.shape, "bfloat16") if bf16 else spec)
        context = base.bits if isinstance(base, Plain) and base.bf16 == bf16 else None
        decode_stream(self.source, name, "values", bits, context)
        return Plain(spec, bits, bf16)


def decode_streams(source: StreamSource, ref: Held | None, names: Iterable[str] | None) -> Held:
    """Decodes the named tensors (None: all) of a checkpoint; tensors in parallel.

    Raises:
        CorruptFileError: a stream is not one that `CodesDraft` or `PlainDraft` writes.
    """
    wanted = list(source.specs) if names is None else [name for name in names if name in source.specs]
    reader = Reader(source, ref, wanted)
    tensors = dict(zip(wanted, map_threads(reader.tensor, wanted), strict=True))
    shared = reader.shared if reader.shared.size else None
    return Held(tensors, reader.layout.scope, shared, restored=True)
