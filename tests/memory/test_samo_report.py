"""Bytes: the formula, what is measured, and a count that knows nothing of either."""

import gc

import pytest
import torch
from torch import nn

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo.formula import break_even, dense_bytes, samo_bytes
from tests.memory.samo_nets import OPTIMIZERS, conv, gpt, loss_of
from tests.memory.storages import Storages

BIG = 1 << 20


def big():
    """Enough weights that alignment and flags are far below 2%; no vectors, as in the formula."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))


def one_step(model, optimizer):
    model(torch.randn(2, 512)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.8, 0.9])
@pytest.mark.parametrize(("name", "moments"), [("adamw", 2), ("sgd", 1)])
def test_every_term_is_within_two_percent_of_the_formula(sparsity, name, moments):
    model = big()
    optimizer = OPTIMIZERS[name](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=sparsity)
    one_step(model, optimizer)
    report = samo.memory_report(handle)
    assert report.parameters == BIG
    for term in report.terms:
        assert term.measured == pytest.approx(term.formula, rel=0.02), term.name
    share = 1 - sparsity
    assert report.measured == pytest.approx(((16 + 4 * moments) * share + 2) * BIG, rel=0.02)
    assert report.dense == (12 + 4 * moments) * BIG


def test_what_is_saved_and_where_it_begins():
    saved = {}
    for sparsity in (0.2, 0.3, 0.8, 0.9):
        model = big()
        optimizer = torch.optim.Adam(model.parameters())
        handle = samo.wrap(model, optimizer, sparsity=sparsity)
        one_step(model, optimizer)
        saved[sparsity] = samo.memory_report(handle).saved
    assert saved[0.2] < 0 < saved[0.3]
    assert saved[0.8] == pytest.approx(0.66, abs=0.005)
    assert saved[0.9] == pytest.approx(0.78, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_nothing_else_is_held(dtype):
    """All bytes that torch allocated for the training and still holds are in the report, and none twice."""
    with Storages() as storages:
        model = big()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=dtype)
        for _ in range(3):
            optimizer.zero_grad()
            one_step(model, optimizer)
        gc.collect()
        report = samo.memory_report(handle)
        held = report.measured - next(one.measured for one in report.terms if one.name == "temporary")
        assert storages.live == pytest.approx(held, rel=0.005)


def test_at_its_peak_a_step_holds_one_dense_gradient_of_a_layer_beside_the_state():
    peaks = {}
    for name in ("dense", "samo"):
        with Storages() as storages:
            model = big()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
            if name == "samo":
                handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
            for _ in range(2):
                optimizer.zero_grad()
                one_step(model, optimizer)
            gc.collect()
            storages.peak = storages.live
            optimizer.zero_grad()
            one_step(model, optimizer)
            peaks[name] = storages.peak
    state = samo.memory_report(handle).measured
    assert peaks["samo"] < state + 2.2 * 512 * 512 * 4
    assert peaks["samo"] < 0.5 * peaks["dense"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("build", [gpt, conv])
def test_vectors_and_dense_layers_are_part_of_the_formula(build, dtype):
    model = build()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    loss_of(model, 0).backward()
    optimizer.step()
    report = samo.memory_report(handle)
    slack = 64 * len(list(model.parameters())) + 0.02 * report.formula  # alignment; batch norms in float32
    assert abs(report.measured - report.formula) < slack
    assert "weights kept" in str(report)
    optimizer.zero_grad()
    grad32 = next(one for one in samo.memory_report(handle).terms if one.name == "grad32")
    assert grad32.measured == 0


def test_the_papers_figures():
    assert sum(dense_bytes(100).values()) == 2000
    assert break_even() == 0.25
    for percent in (0, 25, 80, 90):
        kept = 100 - percent
        assert sum(samo_bytes(100, kept).values()) == 24 * kept + 2 * 100
    assert 1 - sum(samo_bytes(10, 2).values()) / 200 == pytest.approx(0.66)
    assert 1 - sum(samo_bytes(10, 1).values()) / 200 == pytest.approx(0.78)
    with pytest.raises(ConfigError):
        samo_bytes(10, 11)


def test_a_plan_takes_the_smallest_pipeline_that_fits():
    # GPT-3 2.7B: the published 80.16 -> 20.28 GB are 75% less; the formula says 78%.
    found = samo.plan(2_650_000_000, devices=128, memory=14e9, batch=512, forward=1.0, backward=2.0)
    assert found.dense is not None
    assert (found.dense.state_bytes, found.samo.state_bytes) == (53_000_000_000, 11_660_000_000)
    assert 0.74 < 1 - 20.28 / 80.16 < 1 - found.samo.state_bytes / found.dense.state_bytes < 0.79
    assert (found.dense.stages, found.dense.replicas) == (4, 32)
    assert (found.samo.stages, found.samo.replicas) == (1, 128)
    assert (found.dense.bubble, found.samo.bubble) == (3.0 * 0.75, 0.0)
    assert (found.dense.messages, found.samo.messages) == (4 * 512 / 32, 0.0)
    assert found.dense.reduced_bytes == 2 * 2_650_000_000 / 4
    assert found.samo.reduced_bytes == 2 * 265_000_000


def test_a_plan_that_fits_nowhere():
    found = samo.plan(10**9, devices=4, memory=4e9, batch=8)
    assert found.dense is None
    assert found.samo.stages == 2
    with pytest.raises(ConfigError, match="do not fit 4 devices"):
        samo.plan(10**9, devices=4, memory=1e9, batch=8)
    bads = {
        "devices": 0,
        "batch": 1.5,
        "sparsity": 1,
        "forward": -1.0,
        "memory": float("nan"),
        "moments": 1.5,
    }
    for bad in ({name: value} for name, value in bads.items()):
        with pytest.raises(ConfigError):
            samo.plan(**({"parameters": 10**6, "devices": 4, "memory": 1e9, "batch": 8} | bad))
