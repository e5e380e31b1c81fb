"""Optimizers that wrap another and never call torch's ``__init__``, so that no hook can be registered."""

import gc
import signal
import weakref
from collections import defaultdict

import pytest
import torch

import dynaquant_core as dq
from tests.training.models import EXACT, Net, bits, evaluate_net, net_loss, one_step, seed_everything


class Lookahead(torch.optim.Optimizer):
    """As it is usually written (Zhang et al. 2019): every second step goes half of the way."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        self.state = defaultdict(dict)
        self.between = None

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        if self.between is not None:
            self.between()
        self.steps += 1
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight in weights if self.steps % 2 == 0 else ():
            slow = self.state[weight].setdefault("slow", weight.detach().clone())
            slow += (weight.detach() - slow) / 2
            weight.data.copy_(slow)
        return loss

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        slow = [entries["slow"] for entries in self.state.values()]
        return {"fast": self.optimizer.state_dict(), "slow": slow, "steps": self.steps}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["fast"])
        self.steps = state["steps"]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self.state.update({weight: {"slow": slow} for weight, slow in zip(weights, state["slow"])})  # noqa: B905


def lookahead():
    seed_everything()
    model = Net()
    return model, Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2))


def steps(model, optimizer, checkpoints, count):
    for _ in range(count):
        one_step(model, optimizer, net_loss)
        checkpoints.step()


@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_a_wrapped_optimizer_is_trained_saved_and_restored(tmp_path, method):
    model, optimizer = lookahead()
    options = {"every": 3, "evaluate": evaluate_net, "method": method, **EXACT}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        steps(model, optimizer, checkpoints, 3)
        checkpoints.wait()
        resumed, again = lookahead()
        other = dq.Checkpointer(tmp_path, resumed, again)
        assert other.restore() == 3
        other.close()
        assert bits(resumed.state_dict()) == bits(model.state_dict())
        assert bits(again.state_dict()) == bits(optimizer.state_dict())


def test_its_gradients_are_those_of_the_step_that_it_wraps():
    from dynaquant_core.training.gradients import GradientCollector
    from dynaquant_core.training.names import parameter_names

    model, optimizer = lookahead()
    collector = GradientCollector([optimizer], parameter_names({"": model}))
    collector.start()
    one_step(model, optimizer, net_loss)
    assert torch.equal(collector.averages()["head.bias"], model.head.bias.grad)
    collector.close()


def test_a_save_in_the_middle_of_its_step_waits_for_the_end(tmp_path):
    """Also behind the step of the optimizer inside, when the wrapper is still to move the weights."""
    model, optimizer = lookahead()
    with dq.Checkpointer(tmp_path, model, optimizer, every=100, **EXACT) as checkpoints:
        before = signal.signal(signal.SIGUSR1, lambda *_: checkpoints.save())
        optimizer.between = lambda: signal.raise_signal(signal.SIGUSR1) if optimizer.steps == 1 else None
        try:
            steps(model, optimizer, checkpoints, 2)
        finally:
            signal.signal(signal.SIGUSR1, before)
        checkpoints.wait()
        assert checkpoints.store.steps() == [2]
        assert bits(dq.CheckpointStore(tmp_path).load(2)["model"]) == bits(dict(model.state_dict()))


def test_a_save_keeps_nothing_of_the_loop_alive(tmp_path):
    """A frame that was asked for its locals keeps those of then, a graph of a large batch among them."""
    model, optimizer = lookahead()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as checkpoints:
        alive = []
        for _ in range(2):
            batch = net_loss(model)
            alive.append(weakref.ref(batch))
            batch.backward()
            optimizer.step()
            checkpoints.step()
        del batch
        gc.collect()
        assert [reference() for reference in alive] == [None, None]


def test_an_optimizer_that_accelerate_has_prepared_is_taken(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model, optimizer = lookahead()
    wrapped = accelerate.Accelerator(cpu=True).prepare_optimizer(optimizer.optimizer)
    try:
        with dq.Checkpointer(tmp_path, model, wrapped, every=1, **EXACT) as checkpoints:
            steps(model, wrapped, checkpoints, 2)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    again = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert dq.Checkpointer(tmp_path, model, again).restore() == 2
    assert bits(again.state_dict()["state"]) == bits(optimizer.optimizer.state_dict()["state"])
