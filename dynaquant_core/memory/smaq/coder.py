"""What coding carries along a training: the format, its random stream, statistics in use, and tallies."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.config import require
from dynaquant_core.errors import StateMismatchError, UnsupportedStateError
from dynaquant_core.memory.smaq.format import Format, Packed, described
from dynaquant_core.memory.smaq.statistics import Statistics
from dynaquant_core.quantize.flat import FLOATS

__all__ = ["Coder", "Tally"]

KEYS: Final = {"format", "generator", "step_generator", "statistics", "tallies"}

#: Roles of what is the same on every rank of a data-parallel training; the rest is a rank's own.
SHARED: Final = frozenset({"gradient", "weight", "state"})


@dataclass(slots=True)
class Tally:
    """What was coded in one role (saved, map, gradient map, gradient, weight, state) since the beginning.

    Args:
        tensors: how many.
        raw_bytes, stored_bytes: before and after; before, of saved maps: the memory that they lie in, once.
        not_finite: tensors left as they were for NaN or infinity.
    """

    tensors: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    not_finite: int = 0


class Coder:
    """Codes the tensors of one training.

    Tensors that are small, sparse, or not floating are left alone; one with NaN or infinity too, so that the
    training sees it, and it is counted.

    Args:
        form: how.
        generator: on the CPU.  Maps draw from it; gradients, weights and state from a second one, which is
            seeded from it: what a rank's own maps draw must not make the ranks' weights differ.
        reuse: how many further times a place's statistics are used before they are taken again; 0: never.
        smallest: tensors of fewer values are left alone.

    Attributes:
        doubted: whether other ranks may draw otherwise: nobody has compared since it was made, loaded or
            reseeded.
    """

    def __init__(self, form: Format, generator: torch.Generator, reuse: int, smallest: int) -> None:
        self.form, self.generator = form, generator
        self.step_generator = torch.Generator()
        self._seed_step()
        self.reuse, self.smallest = reuse, smallest
        self.tallies: dict[str, Tally] = {}
        self._known: dict[str, tuple[Statistics, int]] = {}
        self._rests, self.doubted = False, True
        self._lock = threading.Lock()  # backward passes of several devices run on threads of their own

    def rest(self) -> None:
        """Takes no tensor from now on."""
        self._rests = True

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor is one to code."""
        if self._rests:
            return False
        dense = tensor.dtype in FLOATS and tensor.layout == torch.strided and not tensor.is_nested
        return dense and tensor.numel() >= self.smallest

    @plainly
    def pack(self, tensor: Tensor, role: str, place: str, raw: int | None = None) -> Packed | None:
        """A tensor in few bytes; None where it is left alone.

        Args:
            tensor: any.
            role: that it is counted under.
            place: what its statistics are remembered under.
            raw: bytes that it takes unpacked; None: its own.
        """
        if not self.takes(tensor):
            return None
        with self._lock, torch.no_grad():
            where = f"{role}/{place}/{tuple(tensor.shape)}"
            try:
                packed = self.form.encode(tensor, self._stream(role), self._statistics(where))
            except UnsupportedStateError:
                self._tally(role).not_finite += 1
                return None
            self._remember(where, packed.statistics)
            self._count(role, tensor.nbytes if raw is None else raw, packed.nbytes)
            return packed

    def count(self, packed: Packed, role: str, raw: int) -> None:
        """Counts what somebody else has packed, as `pack` counts its own."""
        with self._lock:
            self._count(role, raw, packed.nbytes)

    @plainly
    def settle(self, tensor: Tensor, role: str, place: str, form: Format | None = None) -> Tensor | None:
        """What a tensor is once it was coded and decoded; None where it is left alone; as `pack`.

        A gradient map that the format would ruin (`Format.ruins`) is left alone, counted with all its bytes.
        """
        if not self.takes(tensor):
            return None
        with self._lock, torch.no_grad():
            where = f"{role}/{place}/{tuple(tensor.shape)}"
            try:
                known = self._statistics(where)
                settled, stored, found = (form or self.form).settle(tensor, self._stream(role), known)
            except UnsupportedStateError:
                self._tally(role).not_finite += 1
                return None
            self._remember(where, found)
            if role == "gradient map" and self.form.ruins(tensor, settled):
                self._count(role, tensor.nbytes, tensor.nbytes)
                return None
            self._count(role, tensor.nbytes, stored)
            return settled

    def state_dict(self) -> dict[str, Any]:
        """Random stream, statistics in use and tallies, as a tree that a checkpoint can hold."""
        return {
            "format": described(self.form),
            "generator": self.generator.get_state(),
            "step_generator": self.step_generator.get_state(),
            "statistics": {
                place: [known.mean, known.std, uses] for place, (known, uses) in self._known.items()
            },
            "tallies": {role: asdict(tally) for role, tally in self.tallies.items()},
        }

    def check_state_dict(self, state: Any) -> None:
        """Raises what `load_state_dict` would raise, and touches nothing."""
        self._read(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave.

        Raises:
            StateMismatchError: it is none, or of another format; nothing was changed.
        """
        streams, self._known, self.tallies = self._read(state)
        for own, stored in zip((self.generator, self.step_generator), streams, strict=True):
            own.set_state(stored)
        self.doubted = True

    def shared(self) -> bytes:
        """What all ranks round their steps with: the same bytes where they round alike."""
        known = {place: one for place, one in self._known.items() if place.partition("/")[0] in SHARED}
        return self.step_generator.get_state().numpy().tobytes() + repr(sorted(known.items())).encode()

    def _read(self, state: Any) -> tuple[list[Tensor], dict[str, tuple[Statistics, int]], dict[str, Tally]]:
        """The random streams' states, statistics in use and tallies of what `state_dict` gave."""
        if not isinstance(state, Mapping) or set(state) != KEYS:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateMismatchError(f"SmaQ: a state has the keys {', '.join(sorted(KEYS))}, found {found}.")
        mine = described(self.form)
        if state["format"] != mine:
            raise StateMismatchError(
                f"SmaQ: the state is of format {state['format']!r:.200}, this run's is {mine}; apply the "
                f"same."
            )
        try:
            known = {
                place: (Statistics(float(mean), float(std)), int(uses))
                for place, (mean, std, uses) in state["statistics"].items()
            }
            if not all(math.isfinite(one.mean) and 0 <= one.std < math.inf for one, _ in known.values()):
                raise ValueError("a mean or a deviation is not finite")
            tallies = {role: Tally(**counts) for role, counts in state["tallies"].items()}
            streams = [state[name].cpu() for name in ("generator", "step_generator")]
            for stream in streams:
                torch.Generator().set_state(stream)  # refuses what is no stream
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise StateMismatchError(
                f"SmaQ: the state is not what state_dict gave ({error}); nothing was changed."
            ) from None
        return streams, known, tallies

    def reseed(self, seed: int) -> None:
        """Begins both random streams anew; raises ConfigError for what is no seed."""
        whole = isinstance(seed, int) and not isinstance(seed, bool) and -(2**63) <= seed < 2**64
        require(whole, f"SmaQ: a seed must be a whole number from -2^63 to 2^64 - 1, got {seed!r:.80}.")
        self.generator.manual_seed(seed)
        self._seed_step()
        self.doubted = True

    def _seed_step(self) -> None:
        seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
        self.step_generator.manual_seed(int(seed))

    def _stream(self, role: str) -> torch.Generator:
        return self.step_generator if role in SHARED else self.generator

    def _statistics(self, where: str) -> Statistics | None:
        return self._known[where][0] if where in self._known else None

    def _remember(self, where: str, found: Statistics | None) -> None:
        if not self.reuse or found is None or found.std == 0:
            return
        uses = self._known[where][1] - 1 if where in self._known else self.reuse
        if uses > 0:
            self._known[where] = (found, uses)
        else:
            self._known.pop(where, None)

    def _tally(self, role: str) -> Tally:
        return self.tallies.setdefault(role, Tally())

    def _count(self, role: str, raw: int, stored: int) -> None:
        tally = self._tally(role)
        tally.tensors += 1
        tally.raw_bytes += raw
        tally.stored_bytes += stored
