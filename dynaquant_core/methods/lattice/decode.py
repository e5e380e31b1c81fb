"""From streams back to cells, runs in parallel, every announced value checked first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import StreamSource
from dynaquant_core.methods.lattice.cells import NARROW, WIDE, Cells
from dynaquant_core.methods.lattice.contexts import FEW_MOVED
from dynaquant_core.methods.lattice.few_moved import refill
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.layout import BF16, KEPT, NEW, PLAIN, Layout, Row
from dynaquant_core.methods.lattice.motion import KeptLattice, Motion, motion
from dynaquant_core.methods.lattice.outliers import outliers_of
from dynaquant_core.methods.lattice.rows import read_rows
from dynaquant_core.methods.lattice.run_code import run_keys, tables_of
from dynaquant_core.methods.lattice.runs import expanded, runs_of
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.lattice import is_unit
from dynaquant_core.state.raw import empty_words
from dynaquant_core.state.spec import TensorSpec
from dynaquant_core.threads import map_threads

__all__ = ["decode_streams"]


class Reader:
    """Decodes the runs of one checkpoint against what was held before."""

    def __init__(self, source: StreamSource, ref: Held | None) -> None:
        self.source = source
        self.runs = runs_of(source.specs)
        self.layout = Layout.read(source, self.runs)
        self.rows = dict(zip(source.specs, self.layout.rows, strict=True))
        self.schemes = dict(zip(self.runs, self.layout.schemes, strict=True))
        self.base: Mapping[str, Cells | Plain] = {} if ref is None else ref.tensors
        self._require_base(ref)
        self.epochs = self._epochs()

    def _require_base(self, ref: Held | None) -> None:
        expected = self.layout.base_epoch
        if expected is not None and ref is None:
            raise MissingBaseError(
                f"A checkpoint on a lattice stands on one of epoch {expected}; give its base."
            )
        if ref is not None and expected != ref.epoch:
            raise CorruptFileError(
                f"A checkpoint on a lattice stands on one of epoch {expected}, found epoch {ref.epoch}."
            )

    def _epochs(self) -> dict[str, int] | None:
        """Epoch by name in a key that says them, such as one made of a delta; None elsewhere."""
        if not self.source.has("", "epochs"):
            return None
        epochs = np.empty(len(self.source.specs), np.uint32)
        decode_stream(self.source, "", "epochs", epochs)
        return dict(zip(self.source.specs, epochs.tolist(), strict=True))

    def run(self, names: Sequence[str]) -> dict[str, Cells | Plain]:
        """Decodes one run."""
        found: dict[str, Cells | Plain] = {}
        for name in names:
            spec, below = self.source.specs[name], self.base.get(name)
            if below is not None and below.spec != spec:
                raise CorruptFileError(f"tensor {name}: {spec} does not fit its base {below.spec}.")
            if self.rows[name].kind in PLAIN:
                found[name] = self._plain(name, spec, self.rows[name].kind == BF16)
        empty = [self._empty(name) for name in names if name not in found]
        if empty and self.epochs is not None:
            cells = [self._whole(own) for own in empty]
        else:
            cells = self._moved(empty, self.schemes[tuple(names)]) if empty else []
        kept = self._outliers(cells) if cells else []
        return found | {own.name: self._staying(own) for own in kept}

    def _staying(self, own: Cells) -> Cells:
        if not self.rows[own.name].stays:
            return own
        below = self.base.get(own.name)
        known = below.rows if isinstance(below, Cells) else None
        base = None if below is None else below.tensor
        rows = read_rows(self.source, own.name, known, base, own.middle)
        return replace(own, rows=rows)

    def _plain(self, name: str, spec: TensorSpec, bf16: bool) -> Plain:
        bits = empty_words(TensorSpec(spec.shape, "bfloat16") if bf16 else spec)
        below = self.base.get(name)
        context = below.bits if isinstance(below, Plain) and below.bf16 == bf16 else None
        decode_stream(self.source, name, "values", bits, context)
        return Plain(spec, bits, bf16)

    def _empty(self, name: str) -> Cells:
        """A tensor's lattice, its cells still to come."""
        spec, row, below = self.source.specs[name], self.rows[name], self.base.get(name)
        cells, none = np.zeros(0, np.uint8), np.zeros(0, np.int32)
        if row.kind == KEPT:
            if not isinstance(below, Cells):
                raise MissingBaseError(f"tensor {name}: uses its base's lattice, but no base is on one.")
            _require_unit(name, below.step * row.factor)
            lattice = below.step, below.epoch, below.alphabet
            return Cells(name, spec, cells, none, *lattice, row.factor, edge=row.edge)
        epoch = self.layout.epoch if self.epochs is None else self.epochs[name]
        alphabet = NARROW if row.kind == NEW else WIDE
        _require_unit(name, row.step * row.factor)
        return Cells(name, spec, cells, none, row.step, epoch, alphabet, row.factor, edge=row.edge)

    def _whole(self, own: Cells) -> Cells:
        packed = empty_words(TensorSpec(own.spec.shape, "uint8"))
        decode_stream(self.source, own.name, "cells", packed)
        return _with(own, packed)

    def _moved(self, run: Sequence[Cells], scheme: int) -> list[Cells]:
        """Gives a run its cells, from residuals of all its weights or of the few that moved."""
        if scheme < FEW_MOVED:
            return self._residual(run, scheme)
        (own,) = run  # the layout has seen to it
        known = self._motion(own)
        if not isinstance(known, KeptLattice) or not own.alphabet.narrow:
            raise CorruptFileError(
                f"tensor {own.name}: moves are flagged, but it is not on its base's lattice."
            )
        return [_with(own, refill(self.source, own.name, known, scheme - FEW_MOVED))]

    def _motion(self, own: Cells) -> Motion:
        below = self.base.get(own.name)
        return motion(below, own.name, own.step, own.epoch, own.alphabet, own.spec.numel)

    def _residual(self, run: Sequence[Cells], scheme: int) -> list[Cells]:
        """Decodes the residuals of a run; where there is no stream, nothing moved."""
        sizes = [own.spec.numel for own in run]
        _require_room(sum(sizes))
        known = [self._motion(own) for own in run]
        narrow = all(own.alphabet.narrow for own in run)
        moved, dtype = self.source.has(run[0].name, "residuals"), np.uint8 if narrow else np.uint16
        values: NDArray[Any] = np.empty(sum(sizes), dtype) if moved else np.zeros(sum(sizes), dtype)
        if moved:
            contexts = self._contexts(known, [self.rows[own.name] for own in run], scheme)
            decode_stream(self.source, run[0].name, "residuals", values, contexts)
        parts = np.split(values, np.cumsum(sizes)[:-1])
        return [
            _with(own, moves.refill(part, own.name))
            for own, part, moves in zip(run, parts, known, strict=True)
        ]

    def _contexts(self, known: Sequence[Motion], rows: Sequence[Row], scheme: int) -> NDArray[Any]:
        tables = tables_of(len(known))
        if scheme >= len(tables):
            raise CorruptFileError(f"layout stream: there is no scheme {scheme} for a run of {len(known)}.")
        return run_keys(known, [row.group for row in rows]).contexts(tables[scheme])

    def _outliers(self, run: Sequence[Cells]) -> list[Cells]:
        """Gives a run's cells the k of those that do not fit a cell."""
        counts = [int(own.marks().size) for own in run]
        if not any(counts):
            return list(run)
        words = np.empty(sum(counts), np.uint32)
        decode_stream(self.source, run[0].name, "outliers", words)
        found = []
        for own, part in zip(run, np.split(words, np.cumsum(counts)[:-1]), strict=True):
            far = outliers_of(part, own, self.base.get(own.name))
            if (np.abs(far.astype(np.int64)) < own.alphabet.zero).any():
                raise CorruptFileError(f"tensor {own.name}: an outlier is not outside its cells.")
            found.append(replace(own, outliers=far))
        return found


def _require_room(count: int) -> None:
    """Refuses a run of so many weights that this machine could not hold what its decoding needs."""
    empty_words(
        TensorSpec((count,), "int64")
    )  # residuals, keys, contexts, aims and cells: up to 8 bytes a weight


def _require_unit(name: str, unit: float) -> None:
    if not is_unit(unit):
        raise CorruptFileError(f"tensor {name}: its values cannot be decoded in steps of {unit!r}.")


def _with(own: Cells, packed: NDArray[np.uint8]) -> Cells:
    return replace(own, packed=packed)


def decode_streams(source: StreamSource, ref: Held | None, names: Iterable[str] | None) -> Held:
    """Decodes the named tensors (None: all) of a checkpoint, and those that share a run with them.

    Raises:
        CorruptFileError: a stream is not one that `LatticeDraft` or `rekey_streams` writes.
        MissingBaseError: it stands on a base that is not given.
    """
    reader = Reader(source, ref)
    wanted = None if names is None else frozenset(names)
    runs = reader.runs if wanted is None else expanded(reader.runs, wanted)
    found: dict[str, Cells | Plain] = {}
    for part in map_threads(reader.run, runs):
        found |= part
    tensors = {name: found[name] for name in source.specs if name in found}
    return Held(tensors, reader.layout.epoch, reader.layout.scale, restored=True, wanted=wanted)
