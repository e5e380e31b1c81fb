"""Random damage is never silently wrong: 600 mutations of a store's files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, exact_store, is_same, small_state

STEPS = (1, 2, 3, 4)
MUTATIONS = 600
BATCHES = 6


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One file's bytes after one accident."""
    at = rng.randrange(len(data))
    span = min(rng.choice((1, 4, 64, 512)), len(data) - at)
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(span) + data[at + span :]
    if kind == 2:
        return data[:at] + bytes(span) + data[at + span :]
    if kind == 3:
        return data[:at]
    if kind == 4:
        return data + rng.randbytes(span)
    if kind == 5:
        return data[:at] + data[at + span :]
    return data[:at] + other[at : at + span] + data[at + span :]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """File name -> bytes of a store of a key and three deltas."""
    path = tmp_path_factory.mktemp("original")
    with exact_store(path) as store:
        for step in STEPS:
            store.save(step, small_state(step))
    return {file.name: file.read_bytes() for file in checkpoint_files(path)}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_damage_is_found_or_did_not_matter(tmp_path: Path, original: dict[str, bytes], batch: int) -> None:
    rng = random.Random(batch)
    names = list(original)
    fallen_back = refused = 0
    for _ in range(MUTATIONS // BATCHES):
        victim = rng.choice(names)
        for name, data in original.items():
            (tmp_path / name).write_bytes(data)
        damaged = mutated(original[victim], original[rng.choice(names)], rng)
        (tmp_path / victim).write_bytes(damaged)
        store = CheckpointStore(tmp_path)
        for step in STEPS:
            refused += not loads_right(store, step)
        try:
            state = store.load()
        except dq.EmptyStoreError:
            assert victim == names[0]
            continue
        assert is_same(state, small_state(state["step"]))
        assert store.loaded is not None
        fallen_back += state["step"] < STEPS[-1]
        assert len(store.loaded.skipped) == STEPS[-1] - state["step"]
        assert bool(store.verify()) == (damaged != original[victim])
    assert fallen_back
    assert refused


def loads_right(store: CheckpointStore, step: int) -> bool:
    """Whether an explicit step loads; if it does, it is right, and if not, it says so in our own words."""
    try:
        state = store.load(step)
    except dq.DynaQuantError:
        return False
    assert is_same(state, small_state(step))
    return True
