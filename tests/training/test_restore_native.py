"""States that no Checkpointer saved: native training checkpoints, and trees that only look like one."""

import numpy as np
import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.store.native import read_native
from dynaquant_core.training.capture import capture
from dynaquant_core.training.resume import resume
from dynaquant_core.training.rng import require_rng, rng_state
from dynaquant_core.training.subject import Subject
from tests.training.models import EXACT, bits, build, net_loss, one_step


def native(steps=3):
    """A run, and what its user would give to `torch.save`."""
    model, optimizer = build()
    for _ in range(steps):
        one_step(model, optimizer, net_loss)
    return model, optimizer, {"step": steps, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def store_of(folder, tree):
    store = dq.CheckpointStore(folder, **EXACT)
    store.save(3, tree)
    store.close()
    return folder


def refused(folder, model, optimizer, words):
    run = Subject(model, optimizer)
    before = bits(capture(run, 0))
    with (
        dq.Checkpointer(folder, model, optimizer) as checkpoints,
        pytest.raises(StateMismatchError, match=words) as caught,
    ):
        checkpoints.restore()
    assert "othing was restored" in str(caught.value)
    assert bits(capture(run, 0)) == before


@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_native_training_checkpoint_is_resumed(tmp_path, through_a_file):
    model, optimizer, tree = native()
    if through_a_file:  # as `dynaquant import` reads it
        torch.save(tree, tmp_path / "native.pt")
        tree = read_native(tmp_path / "native.pt")
    folder = store_of(tmp_path / "run", tree)
    other, again = build()
    with dq.Checkpointer(folder, other, again, **EXACT) as checkpoints:
        assert checkpoints.restore() == 3
        assert bits(other.state_dict()) == bits(model.state_dict())
        assert bits(again.state_dict()) == bits(optimizer.state_dict())
        one_step(other, again, net_loss)
        checkpoints.save()  # by name from here on
        checkpoints.wait()
        assert "head.weight" in checkpoints.store.load()["optimizer"]["state"]


def test_numbers_are_places_group_by_group(tmp_path):
    def groups(model, order):
        biases = [weight for weight in model.parameters() if weight.dim() == 1]
        matrices = [weight for weight in model.parameters() if weight.dim() == 2]
        both = {"b": {"params": biases, "lr": 0.5}, "m": {"params": matrices}}
        return torch.optim.AdamW([both[one] for one in order], lr=1e-2)

    model, _, tree = native()
    optimizer = groups(model, "bm")
    one_step(model, optimizer, net_loss)
    folder = store_of(tmp_path / "run", {**tree, "optimizer": optimizer.state_dict()})
    other, flat = build()
    again = groups(other, "bm")
    with dq.Checkpointer(folder, other, again) as checkpoints:
        checkpoints.restore()
    assert bits(again.state_dict()) == bits(optimizer.state_dict())
    refused(folder, other, groups(other, "mb"), "groups have .* parameters, which are numbered")
    refused(folder, other, flat, "groups have .* parameters, which are numbered")


def test_a_moment_of_another_shape_than_the_parameter_at_its_place_is_refused(tmp_path):
    model, _, tree = native()
    optimizer = torch.optim.AdamW(list(model.parameters())[::-1])
    one_step(model, optimizer, net_loss)
    folder = store_of(tmp_path / "run", {**tree, "optimizer": optimizer.state_dict()})
    refused(folder, *build(), r"exp_avg of 0 has shape \(4,\) in the checkpoint and the parameter \(32, 16\)")


@pytest.mark.parametrize(
    "step", [torch.tensor(5), torch.tensor([5]), torch.tensor(5.0), np.int64(5), np.array(5), 5.0]
)
def test_a_step_may_be_a_whole_number_of_any_kind(tmp_path, step):
    model, optimizer, tree = native()
    folder = store_of(tmp_path / "run", {**tree, "step": step})
    with dq.Checkpointer(folder, model, optimizer) as checkpoints:
        restored = checkpoints.restore()
    assert restored == 5
    assert type(restored) is int


@pytest.mark.parametrize("step", [-3, torch.tensor(-1), 2.5, float("nan"), True, "3", None, torch.ones(2)])
def test_a_step_that_is_no_whole_number_is_refused_as_such(tmp_path, step):
    model, optimizer, tree = native()
    folder = store_of(tmp_path / "run", {**tree, "step": step})
    refused(folder, model, optimizer, "'step' must be a whole number of completed optimizer steps")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ([1], "'step' and 'model' are missing"),
        ({"model": {}}, "'step' is missing"),
        ({"step": 1}, "'model' is missing"),
    ],
)
def test_what_is_no_training_state_says_what_is_missing(tmp_path, tree, words):
    folder = store_of(tmp_path / "run", tree)
    refused(folder, *build(), words)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"state": {}, "param_groups": 3},
        {"state": {}, "param_groups": [3]},
        {"state": {}, "param_groups": [{"lr": 0.1}]},
        {"state": {}, "param_groups": [{"lr": 0.1, "params": 3}]},
        {"state": {}, "param_groups": [{"lr": 0.1, "params": [[0]]}]},
        {"state": [], "param_groups": []},
        {"groups": []},
        None,
    ],
)
def test_what_is_no_optimizers_state_is_refused_before_anything_is_touched(tmp_path, optimizer):
    _, _, tree = native()
    folder = store_of(tmp_path / "run", {**tree, "optimizer": optimizer})
    refused(folder, *build(), "optimizer: the checkpoint holds no (whole optimizer state|state of a single)")


def without(part):
    return {name: value for name, value in rng_state().items() if name != part}


FOREIGN_STREAMS = {
    "a number": 5,
    "a seed": {"seed": 1},
    "torch's alone": torch.get_rng_state(),
    "no python": without("python"),
    "no cuda": without("cuda"),
    "short torch": {**rng_state(), "torch": torch.zeros(3, dtype=torch.uint8)},
    "empty numpy": {**rng_state(), "numpy": {"bit_generator": "PCG64"}},
    "short python": {**rng_state(), "python": {"version": 3, "words": [1], "gauss": None}},
    "odd cuda": {**rng_state(), "cuda": [3]},
}


@pytest.mark.parametrize("streams", FOREIGN_STREAMS.values(), ids=FOREIGN_STREAMS)
def test_random_streams_of_another_form_are_refused_before_anything_is_touched(tmp_path, streams):
    _, _, tree = native()
    folder = store_of(tmp_path / "run", {**tree, "rng": streams})
    refused(folder, *build(), "rng: the checkpoint holds no random streams")


def test_a_look_at_random_streams_draws_and_sets_nothing():
    state = rng_state()
    torch.rand(3), np.random.rand(3)  # noqa: NPY002 - the legacy stream is restored
    now = bits(rng_state())
    require_rng(state)
    assert bits(rng_state()) == now


def test_a_native_state_of_several_optimizers_is_resumed(tmp_path):
    models = {name: nn.Linear(3, 3) for name in "ab"}
    optimizers = {name: torch.optim.AdamW(model.parameters()) for name, model in models.items()}
    for name, model in models.items():
        model(torch.ones(1, 3)).sum().backward()
        optimizers[name].step()
    tree = {
        "step": 1,
        "model": {name: model.state_dict() for name, model in models.items()},
        "optimizer": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
    }
    folder = store_of(tmp_path / "run", tree)
    others = {name: nn.Linear(3, 3) for name in "ab"}
    again = {name: torch.optim.AdamW(model.parameters()) for name, model in others.items()}
    with dq.CheckpointStore(folder) as store:
        assert resume(store, Subject(others, again), None).step == 1
    assert bits(again["b"].state_dict()) == bits(optimizers["b"].state_dict())


class Rows(torch.optim.Optimizer):
    """One second moment a row."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            square = weight.grad.square()
            rows = square.mean(-1, keepdim=True) if weight.dim() == 2 else square
            self.state[weight] = {"exp_avg": weight.grad.clone(), "exp_avg_sq": rows}


def test_moments_of_rows_are_taken_in_the_order_of_the_parameters(tmp_path):
    model, _, tree = native()
    for number, order in enumerate((1, -1)):
        optimizer = Rows(list(model.parameters())[::order], lr=0.1)
        one_step(model, optimizer, net_loss)
        folder = store_of(tmp_path / f"{number}", {**tree, "optimizer": optimizer.state_dict()})
        other, _ = build()
        again = Rows(other.parameters(), lr=0.1)
        if order == -1:
            refused(
                folder, other, again, r"exp_avg of 0 has shape \(4,\) in the checkpoint and the parameter"
            )
            continue
        with dq.Checkpointer(folder, other, again) as checkpoints:
            checkpoints.restore()
        assert bits(again.state_dict()) == bits(optimizer.state_dict())
