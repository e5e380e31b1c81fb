"""A checkpoint of a model on a device is the one of the same model in host memory, and goes back there."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from tests.device.places import EVERYWHERE, everywhere
from tests.training.models import bits

MOMENTS = ["exact", "8bit", "compact", "minimal", "sparse", "second", "none"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
METHODS = ["lattice", "dynaquant", "qd", "cnr", "gobo", "lc", "topn", "zstd", "none"]


def tree(step, device="cpu", dtype=torch.float32):
    """Two layers whose weights move from step to step, with Adam's moments, ids, and 0-d counts."""
    draw = torch.Generator().manual_seed(3)
    shapes = {"body.weight": (300, 200), "body.bias": (300,), "head.weight": (40, 300)}
    model = {name: 0.05 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    draw.manual_seed(step)
    model = {name: one + 0.002 * step * torch.randn(one.shape, generator=draw) for name, one in model.items()}
    moments = {
        index: {
            "step": torch.tensor(float(step)),
            "exp_avg": (1e-3 * torch.randn(shape, generator=draw)).to(device, dtype),
            "exp_avg_sq": (1e-6 * torch.rand(shape, generator=draw)).to(device, dtype),
        }
        for index, shape in enumerate(shapes.values())
    }
    model = {name: one.to(device, dtype) for name, one in model.items()}
    model["seen"] = torch.tensor(step, device=device)
    group = {"lr": 1e-3, "params": [0, 1, 2]}
    return {"model": model, "optimizer": {"state": moments, "param_groups": [group]}, "step": step}


@pytest.mark.parametrize(
    ("device", "method", "dtype"),
    everywhere([("lattice", torch.float32), ("dynaquant", torch.bfloat16)], list(product(METHODS, DTYPES))),
)
def test_what_is_stored_does_not_depend_on_where_the_weights_lie(tmp_path, method, dtype, device):
    here, there = (CheckpointStore(tmp_path / name, method=method, max_chain=3) for name in ("cpu", "other"))
    for step in range(1, 5):
        here.save(step, tree(step, dtype=dtype))
        there.save(step, tree(step, device, dtype))
        assert bits(here.load(step)) == bits(there.load(step))
        assert here.info(step).kind == there.info(step).kind
    assert there.load(4)["model"]["body.weight"].device.type == "cpu"


@pytest.mark.parametrize(("device", "moments"), everywhere([("compact",)], [(one,) for one in MOMENTS]))
def test_moments_do_not_depend_on_where_they_lie(tmp_path, moments, device):
    stores = [CheckpointStore(tmp_path / name, moments=moments, max_chain=3) for name in ("cpu", "other")]
    for step in range(1, 4):
        for store, place in zip(stores, ("cpu", device), strict=True):
            store.save(step, tree(step, place))
        loaded = [store.load(step)["optimizer"] for store in stores]
        assert bits(loaded[0]) == bits(loaded[1])


@EVERYWHERE
@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_a_checkpoint_is_decoded_onto_a_device_as_onto_the_cpu(tmp_path, method, device):
    store = CheckpointStore(tmp_path, method=method, max_chain=3)
    for step in (1, 2, 3):
        store.save(step, tree(step, device))
    loaded = store.load(3, device=device)
    weight = loaded["model"]["body.weight"]
    assert weight.device.type == device
    assert bits(loaded) == bits(store.load(3))
    into = tree(9, device)
    store.load_into(into, 3)
    assert into["model"]["body.weight"].device.type == device
    assert bits(into["model"]) == bits(loaded["model"])


@EVERYWHERE
def test_a_single_file(tmp_path, device):
    model = tree(1, device)["model"]
    dq.save_file(model, tmp_path / "model.dq")
    loaded = dq.load_file(tmp_path / "model.dq")
    dq.save_file(tree(1)["model"], tmp_path / "other.dq")
    assert bits(loaded) == bits(dq.load_file(tmp_path / "other.dq"))
