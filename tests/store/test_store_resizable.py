"""Storages stay what torch makes them: a save leaves the live ones alone, and a load gives torch's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dynaquant_core import CheckpointStore
from dynaquant_core.state import flatten

SIZES = {"large": (1100, 1024), "small": (64, 64), "bias": (64,)}
METHODS = ["lattice", "dynaquant", "cnr", "qd", "gobo", "topn", "scar", "lc", "excp", "exact"]
CASES = [(method, "8bit") for method in METHODS]
CASES += [("lattice", moments) for moments in ("exact", "compact", "minimal", "sparse", "second", "none")]


@pytest.mark.parametrize(("method", "moments"), CASES)
def test_storages_can_be_resized_after_a_save_and_a_load(tmp_path: Path, method: str, moments: str) -> None:
    """NumPy's view of a tensor marks it for good; sharded training, which resizes storages, ended there."""
    draw = torch.Generator().manual_seed(0)
    kinds = ("exp_avg", "exp_avg_sq")
    state = {
        number: {kind: torch.rand(size, generator=draw) for kind in kinds}
        for number, size in enumerate(SIZES.values())
    }
    model = {name: torch.randn(size, generator=draw) for name, size in SIZES.items()}
    model |= {"half": model["large"].bfloat16(), "double": model["small"].double(), "count": torch.arange(9)}
    tree = {"model": model, "optimizer": {"state": state, "param_groups": []}}
    found = []
    for step in (1, 2):
        with CheckpointStore(tmp_path, method=method, moments=moments) as store:
            if step == 2:
                found.append(store.resume())
                model["large"][:9] += 0.1
            store.save(step, tree)
    found.append(CheckpointStore(tmp_path).load())
    for each in (tree, *found):
        for leaf in flatten(each).leaves:
            storage = leaf.tensor.untyped_storage()
            assert storage.resizable(), leaf.name
            storage.resize_(0)
