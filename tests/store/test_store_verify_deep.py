"""A deep look decodes every tensor of every file, and goes through a chain once, however long it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from dynaquant_core.methods.base import Reference, StreamSource
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files

CHAIN = 12


class Counted(Lattice):
    """Lattice that counts the files it decodes."""

    decoded = 0

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> Reference:
        """Counts."""
        type(self).decoded += 1
        return super().decode(streams, ref, names)


def saved(path: Path, steps: int, max_chain: int) -> list[int]:
    """Saves a walk of one tensor; steps of the checkpoints."""
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    with CheckpointStore(path, max_chain=max_chain) as store:
        for step in range(steps):
            weight += 0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(step + 1))
            store.save(step, {"weight": weight})
        return store.steps()


def depth(bases: dict[int, int | None], step: int) -> int:
    """How many files a step builds on."""
    below = bases[step]
    return 0 if below is None else 1 + depth(bases, below)


@pytest.mark.parametrize("max_chain", [CHAIN, 4])
def test_a_chain_is_decoded_once(tmp_path: Path, max_chain: int) -> None:
    steps = saved(tmp_path, CHAIN, max_chain)
    Counted.decoded = 0
    store = CheckpointStore(tmp_path, method=Counted())
    assert store.verify(deep=True) == []
    # With two lines on one link, the second goes back to its key once.
    bases = {step: store.info(step).base_step for step in steps}
    again = [step for step in steps if bases[step] not in (None, step - 1)]
    assert bool(again) == (max_chain < CHAIN)
    assert Counted.decoded == len(steps) + sum(depth(bases, step) for step in again)


def test_what_stands_on_damage_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 6, CHAIN)
    broken = checkpoint_files(tmp_path)[2]
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(bytes(data))
    assert [problem.step for problem in CheckpointStore(tmp_path).verify(deep=True)] == [2, 3, 4, 5]
