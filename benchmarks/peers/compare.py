"""One peer over one recording: every checkpoint written, read back by a reader of its own, and measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from coder import Coder, Meets, Tensors
from judge import Judge, Reference, within_movement, within_threshold
from states import State, nbytes, same_bits, state_of
from table import Peer
from torch import Tensor

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.measures import MovementWatch
from dynaquant_core.experiments.recording import Recording

__all__ = ["Comparison"]

Entry = dict[str, Any]


class Comparison:
    """A recording, and what its checkpoints are worth uncompressed.

    Args:
        experiment: the recorded run's settings; its method is not looked at, its moments are the policy of
            peers that code weights only.
        recording: finished.
    """

    def __init__(self, experiment: Experiment, recording: Recording) -> None:
        self.experiment, self.recording = experiment, recording
        self.judge = Judge(experiment)
        self._references: dict[int, Reference] = {}

    def checkpoints(self, peer: Peer, folder: Path, *, threshold: float, er: float) -> Iterator[Entry]:
        """An entry for each checkpoint, in the keys of results.json as far as there are any.

        Args:
            peer: which one.
            folder: of its files, made here; a folder a checkpoint and role.
            threshold: allowed degradation on the search set.
            er: allowed error as a share of the movement, for peers that are asked for it.

        Raises:
            ExperimentError: the peer cannot keep the state, or a recorded state is damaged.
        """
        watch = self.judge.watch(state_of(self.recording.load(0)["state"]).weights)
        sides = [self._side(peer) for _ in ("writer", "reader")]
        for step in self.recording.steps:
            state = state_of(self.recording.load(step)["state"])
            reference = self._reference(step, state)
            meets = within_threshold(self.judge, reference, threshold)
            if peer.guard == "movement":
                meets = within_movement(watch, state.weights, er, meets)
            entry, decoded = _through(state, folder / f"step-{step}", *sides, meets)
            yield (
                {"step": step}
                | entry
                | self.judge.entry(reference, decoded["weight"], threshold, same=entry["bits"]["weight"])
                | _moved(watch, state.weights, decoded["weight"])
            )
            watch.advance(decoded["weight"])

    def _side(self, peer: Peer) -> dict[str, Coder]:
        return {"weight": peer.weights(), "moment": peer.moments_coder(self.experiment.moments)}

    def _reference(self, step: int, state: State) -> Reference:
        if step not in self._references:
            self._references[step] = Reference(self.judge, state.weights)
        return self._references[step]


def _through(
    state: State, folder: Path, writer: Mapping[str, Coder], reader: Mapping[str, Coder], meets: Meets
) -> tuple[Entry, dict[str, dict[str, Any]]]:
    """A checkpoint to files and back; what it took, and what came back."""
    parts, seconds = {}, {"search": 0.0, "write": 0.0, "read": 0.0}
    decoded, bits, settings, tried = {}, {}, [], 0
    for role, tensors in state.parts().items():
        place = folder / role
        place.mkdir(parents=True)
        started = time.perf_counter()
        note = writer[role].write(tensors, place, meets)
        whole = time.perf_counter() - started
        started = time.perf_counter()
        decoded[role] = reader[role].read(place)
        seconds["read"] += time.perf_counter() - started
        seconds["write"] += note.seconds
        seconds["search"] += max(0.0, whole - note.seconds)
        parts[role] = {"raw_bytes": nbytes(tensors), "stored_bytes": _on_disk(place)}
        bits[role] = same_bits(tensors, decoded[role])
        settings += [note.setting] if note.setting else []
        tried += note.tried
    entry = {
        "parts": parts,
        "seconds": seconds,
        "bits": bits,
        "evaluations": tried,
        "config": ", ".join(settings),
    }
    errors = {"moments_error": _relative(state.moments, decoded["moment"])} if "moment" in decoded else {}
    return entry | errors, decoded


def _moved(watch: MovementWatch, true: Tensors, decoded: Tensors) -> Entry:
    return {"movement_lost": watch.lost(true, decoded), "unchanged": watch.unchanged(decoded)}


def _relative(true: Tensors, decoded: Tensors) -> dict[str, float | None]:
    """Moment -> root of its squared error over that of its squares, all tensors together."""
    sums: dict[str, Tensor] = {}
    for name, tensor in true.items():
        moment = name.rpartition("/")[2]
        exact, off = tensor.double(), decoded[name].double() - tensor.double()
        squares = torch.stack([off.square().sum(), exact.square().sum()])
        sums[moment] = sums.get(moment, torch.zeros(2)) + squares
    return {moment: float((error / all_).sqrt()) if all_ else None for moment, (error, all_) in sums.items()}


def _on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
