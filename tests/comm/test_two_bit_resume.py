"""The residual goes into checkpoints: a run of two ranks, killed and resumed, ends as if it had not been."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core import Checkpointer
from dynaquant_core.comm import two_bit
from dynaquant_core.errors import ConfigError, StateMismatchError
from tests.gloo import leave, play

LIFE = "tests.comm.life"


def test_killed_and_resumed_is_bit_identical_to_uninterrupted(tmp_path):
    killed = play(LIFE, tmp_path, 2, "broken-14-8-8", store="tcp")
    assert killed == {"broken-14-8-8": []}  # rank 0 has committed step 8, rank 1 only step 4
    resumed, expected = play(LIFE, tmp_path, 2, "broken-14-0-0", "whole-14-0-0", store="tcp").values()
    assert [record["start"] for record in resumed] == [4, 4]
    assert [record["start"] for record in expected] == [0, 0]
    assert expected[0]["digest"] != expected[1]["digest"]  # the ranks hold residuals of their own
    assert all(record["held"] > 0 for record in expected)
    assert [record["digest"] for record in resumed] == [record["digest"] for record in expected]


@pytest.fixture
def one_rank():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    leave()


def trained(folder, steps, exact):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64)))
    state = two_bit.register(model, threshold=0.5, reduce="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with Checkpointer(
        folder, model, optimizer, every=5, exact=exact, extra={"two_bit": state}
    ) as checkpoints:
        start = checkpoints.restore()
        for _ in range(start, steps):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().sum().backward()
            optimizer.step()
            checkpoints.step()
    held = {name: state.residual(name).clone() for name in ("0.weight", "1.bias")}
    return held, model.module[0].weight.detach().clone()


@pytest.mark.parametrize("exact", [("two_bit",), ()])
def test_by_default_the_residual_is_stored_as_weights_are(tmp_path, one_rank, exact):
    held, weight = trained(tmp_path, 10, exact)
    back, restored = trained(tmp_path, 10, exact)
    assert not torch.equal(weight, restored)  # the default method rounds weights
    assert torch.equal(back["0.weight"], held["0.weight"]) == bool(exact)
    apart = (back["0.weight"] - held["0.weight"]).std() / held["0.weight"].std()
    assert apart < 0.5


def test_a_state_that_does_not_fit_is_refused_before_the_model_is_touched(tmp_path, one_rank):
    """A layer is frozen in between, so the checkpoint holds a residual that nobody has."""
    trained(tmp_path, 5, ())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64).requires_grad_(False)))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    extra = {"two_bit": two_bit.register(model, threshold=0.5, reduce="sum")}
    with (
        Checkpointer(tmp_path, model, optimizer, extra=extra) as checkpoints,
        pytest.raises(StateMismatchError, match=r"1\.weight is not in the model.*nothing was restored"),
    ):
        checkpoints.restore()
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def test_a_scaler_that_is_none_is_refused(one_rank):
    model = DistributedDataParallel(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"scaler must be a gradient scaler.*got str"):
        two_bit.register(model, scaler="dynamic")
    two_bit.register(model)  # and leaves the model free
