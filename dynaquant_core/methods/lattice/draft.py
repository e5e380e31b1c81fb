"""Drafts of the method ``lattice``: what a reader would get, its size, and the streams that say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.base import Reference, Stream
from dynaquant_core.methods.lattice.cells import Cells, cells_of
from dynaquant_core.methods.lattice.few_moved import FewMoved, few_moved
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.layout import Layout, Row
from dynaquant_core.methods.lattice.looks import is_level
from dynaquant_core.methods.lattice.motion import motion
from dynaquant_core.methods.lattice.plan import Plan
from dynaquant_core.methods.lattice.rekey import rekey_streams, row_of
from dynaquant_core.methods.lattice.rows import row_streams
from dynaquant_core.methods.lattice.run_code import RunCode, run_code
from dynaquant_core.methods.lattice.runs import runs_of
from dynaquant_core.methods.rounded import rounded
from dynaquant_core.methods.words import CODECS, Plain, plain_of
from dynaquant_core.quantize.lattice import offset_key
from dynaquant_core.state.spec import TensorSpec
from dynaquant_core.threads import map_threads

__all__ = ["LatticeDraft"]

#: Runs that are coded at once: their contexts take several bytes a weight.
AT_ONCE = 8


class LatticeDraft:
    """One candidate; see `methods.base.Draft`.

    Args:
        config: the point.
        state: live tensors by name.
        base: what a reader holds, or None for a key checkpoint.
        plan: where each tensor goes; what goes on no lattice is rounded as the config's scale says.
    """

    def __init__(
        self,
        config: LatticeConfig,
        state: Mapping[str, Tensor],
        base: Held | None,
        plan: Plan,
    ) -> None:
        self.config, self.is_key = config, base is None
        self._base = base
        self._plan = plan
        self._epoch = plan.epoch
        self._live: Mapping[str, Tensor] = state
        self._specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        self._held: dict[str, Cells | Plain] = {}
        self._size: int | None = None

    @property
    @plainly
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        for name in self._specs:
            device = self._live[name].device if name in self._live else "cpu"
            yield name, self._tensor(name).tensor(device)

    @property
    def size(self) -> int:
        """Bytes of all streams, from counts; of a key that mixes epochs, from the streams themselves."""
        if self._size is None and self._mixed:
            whole = dict(zip(self._specs, map_threads(self._tensor, list(self._specs)), strict=True))
            self._size = sum(len(stream.payload) for stream in rekey_streams(self._reference(whole)))
        if self._size is None:
            coded = map_threads(lambda run: self._run(run).row, runs_of(self._specs))
            layout = sum(len(stream.payload) for stream in self._layout(coded).streams())
            self._size = sum(run.bytes for run in coded) + layout
        return self._size

    def detach(self) -> None:
        """Puts every tensor on its lattice and lets go of the live ones."""
        if self._live:
            names = list(self._specs)
            self._held = dict(zip(names, map_threads(self._tensor, names), strict=True))
            self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """The streams, a run at a time, and what a reader then holds."""
        self.detach()
        map_threads(self._remember, list(self._specs))
        held = self._reference(self._held)
        return rekey_streams(held) if self._mixed else self._streams(), held

    @property
    def _mixed(self) -> bool:
        """A key in which tensors stay on lattices of earlier epochs, and so says the epoch of each."""
        lattices = self._plan.lattices.values() if self.is_key else ()
        return any(goes is not None and goes.epoch != self._epoch for goes in lattices)

    @property
    def _scale(self) -> float:
        return self.config.scale if isinstance(self.config.scale, float) else 0.0

    def _reference(self, tensors: Mapping[str, Cells | Plain]) -> Held:
        plan = self._plan
        return Held(tensors, self._epoch, self._scale, restored=False, began=plan.began, unmoved=plan.unmoved)

    def _tensor(self, name: str) -> Cells | Plain:
        """What a reader would hold of a tensor."""
        if name in self._held:
            return self._held[name]
        goes = self._plan.lattices[name]
        if goes is None:
            return self._plain(name)
        cells = cells_of(name, self._live[name], goes.drawn_in, goes.epoch, goes.alphabet, goes.spread)
        if cells is None:
            return plain_of(self._live[name], bf16=False)
        return replace(cells, step=goes.step, factor=goes.factor, rows=goes.rows, edge=goes.edge)

    def _plain(self, name: str) -> Plain:
        """A tensor that goes on no lattice; one of equal values takes a few bytes as it is."""
        live = self._live[name]
        if self.config.scale == "bf16" and not is_level(live):
            return rounded(live, offset_key(self._epoch, name))
        return plain_of(live, bf16=False)

    def _below(self, name: str) -> Cells | Plain | None:
        return None if self._base is None else self._base.tensors.get(name)

    def _remember(self, name: str) -> None:
        own, below = self._held[name], self._below(name)
        if isinstance(own, Cells) and own.alphabet.narrow and below is not None:
            known = motion(below, name, own.step, own.epoch, own.alphabet, own.packed.size)
            known.remember(own.packed)

    def _run(self, names: Sequence[str]) -> Run:
        members = {name: self._tensor(name) for name in names}
        cells = [own for own in members.values() if isinstance(own, Cells)]
        code = code_of(cells, {} if self._base is None else self._base.tensors) if cells else None
        words = [self._words(name, own) for name, own in members.items() if isinstance(own, Plain)]
        words += [stream for own in cells for stream in self._rows(own)]
        groups = {} if code is None else dict(zip(code.names, code.groups, strict=True))
        rows = {name: row_of(own, self._below(name), groups.get(name, 0)) for name, own in members.items()}
        size = sum(len(stream.payload) for stream in words) + (0 if code is None else code.bytes)
        return Run(RunRow(rows, 0 if code is None else code.scheme, size), code, words)

    def _rows(self, own: Cells) -> Iterator[Stream]:
        below = self._below(own.name)
        known = below.rows if isinstance(below, Cells) else None
        given = isinstance(below, Plain) and own.rows is not None and not own.rows.are_in(below.tensor())
        return row_streams(own.name, own.rows, known, own.middle, alone=given)

    def _words(self, name: str, own: Plain) -> Stream:
        """A tensor that is on no lattice."""
        below = self._below(name)
        alike = isinstance(below, Plain) and below.bf16 == own.bf16
        context = below.bits if alike and isinstance(below, Plain) else None
        return Stream(name, "values", *encode_smallest(own.bits, context, CODECS))

    def _streams(self) -> Iterator[Stream]:
        runs, coded = runs_of(self._specs), []
        for start in range(0, len(runs), AT_ONCE):
            for row, streams in map_threads(self._coded_run, runs[start : start + AT_ONCE]):
                coded.append(row)
                yield from streams
        yield from self._layout(coded).streams()

    def _coded_run(self, names: Sequence[str]) -> tuple[RunRow, list[Stream]]:
        run = self._run(names)
        return run.row, [*(() if run.code is None else run.code.streams()), *run.words]

    def _layout(self, coded: Sequence[RunRow]) -> Layout:
        rows = {name: row for run in coded for name, row in run.rows.items()}
        base_epoch = None if self._base is None else self._base.epoch
        schemes = [run.scheme for run in coded]
        return Layout(self._epoch, base_epoch, self._scale, [rows[name] for name in self._specs], schemes)


@dataclass(frozen=True, slots=True)
class RunRow:
    """What the layout and the size need of a run that was coded.

    Args:
        rows: of its tensors by name.
        scheme: of its residuals.
        bytes: of its streams, predicted.
    """

    rows: Mapping[str, Row]
    scheme: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run about to be written.

    Args:
        row: what is kept of it.
        code: of its tensors on a lattice; None where there is none.
        words: streams of the others, and of the rows that stay.
    """

    row: RunRow
    code: RunCode | FewMoved | None
    words: list[Stream]


def code_of(cells: Sequence[Cells], base: Mapping[str, Cells | Plain]) -> RunCode | FewMoved:
    """How the tensors of a run that are on a lattice are coded."""
    return few_moved(cells, base) or run_code(cells, base)
