"""A tensor that is held is decoded in parts as it is whole, and a save after a restore takes no whole one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.config import LatticeConfig
from dynaquant_core.experiments.bench.child import peak_bytes_of
from dynaquant_core.methods.lattice import Lattice, parts
from dynaquant_core.methods.lattice.cells import Cells
from tests.methods.streams import assert_same, store

LATTICE = Lattice()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.5, 0.02, "bf16", "exact"])
def test_in_parts_a_tensor_is_what_it_is_whole(dtype, scale, monkeypatch):
    """Outliers, rows that stay, zeros and signs fall into the parts that they belong to."""
    monkeypatch.setattr(parts, "PART", 256)
    draw = torch.Generator().manual_seed(0)
    state = {
        "table": torch.randn(203, 12, generator=draw),
        "pruned": torch.randn(60, 7, 3, generator=draw),
        "positive": torch.rand(37, 30, generator=draw),
        "vector": torch.randn(1001, generator=draw),
        "wide": torch.randn(3, 900, generator=draw),
    }
    state["pruned"][state["pruned"].abs() < 0.4] = 0
    state["table"].view(-1)[::97] *= 60
    state["table"][50:60] = 0
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    read = store(LATTICE, state, None, LatticeConfig(scale=0.5))[2]
    state = read.state()
    for name in ("table", "pruned", "wide"):
        state[name][1::2] += (0.05 * torch.randn(state[name][1::2].shape, generator=draw)).to(dtype)
    held = store(LATTICE, state, read, LatticeConfig(scale=scale))[1]
    assert any(own.rows is not None for _, own in read.cells())
    assert scale != 0.02 or any(isinstance(own, Cells) and own.outliers.size for own in held.tensors.values())
    for name, own in (*held.tensors.items(), *read.tensors.items()):
        found = list(parts.parts_of(own))
        assert len(found) > 1 or name == "wide"
        assert_same({name: torch.cat([values for _, values in found])}, {name: own.tensor().view(-1)})
        single = torch.cat([values for _, values in parts.parts_of(own, torch.float32)])
        whole = torch.empty(own.spec.numel)
        if isinstance(own, Cells):
            own.write(whole)
        else:
            whole.copy_(own.tensor().view(-1))
        assert torch.equal(single, whole)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is Linux's to tell")
@pytest.mark.parametrize(("moves", "most"), [(1.0, 7), (0.5, 9.5), (0.0, 4)])
def test_the_first_save_after_a_restore_takes_few_bytes_a_weight(
    tmp_path: Path, moves: float, most: float
) -> None:
    """Of one large matrix it took 13, 15 and 5: values of the base, offsets and aims of all of it at once.

    Rows that stay are held at four bytes a weight beside it.
    """
    for rows, path in ((512, tmp_path / "warm"), (16384, tmp_path / "run")):
        weights = {"w": 0.02 * torch.randn(rows, 1024, generator=torch.Generator().manual_seed(0))}
        config = LatticeConfig(scale=0.5)
        with dq.CheckpointStore(path) as checkpoints:
            checkpoints.save(0, {"model": weights}, config=config)
        with dq.CheckpointStore(path) as checkpoints:
            state = checkpoints.resume()
            for part in state["model"]["w"][: int(moves * rows)].split(64):
                part += 1e-4 * torch.randn(part.shape)
            peak = peak_bytes_of(partial(checkpoints.save, 1, state, config=config))
    assert peak < most * weights["w"].numel()
