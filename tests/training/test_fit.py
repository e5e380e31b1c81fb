"""What an error advises where a checkpoint does not fit the model."""

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import capture
from dynaquant_core.training.fit import own_ways
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from tests.training.models import EXACT, Net, bits, stored


def refusal(model, tree):
    with pytest.raises(StateMismatchError) as caught:
        put_back(Subject(model), tree)
    return str(caught.value)


def saved_of(model):
    return stored(capture(Subject(model), 1))


def test_a_wrapped_model_is_told_to_give_what_is_in_it():
    plain, wrapped = Net(), nn.DataParallel(Net())
    said = refusal(wrapped, saved_of(plain))
    assert "model.module" in said
    assert "Build the model" not in said
    assert "head.weight" not in said  # forty names would hide it
    put_back(Subject(wrapped.module), saved_of(plain))


def test_a_checkpoint_of_a_wrapped_model_is_told_to_be_one():
    plain, wrapped = Net(), nn.DataParallel(Net())
    said = refusal(plain, saved_of(wrapped))
    assert "model.module" in said
    assert "give nn.DataParallel(model)" in said
    assert "Build the model" not in said
    put_back(Subject(nn.DataParallel(plain)), saved_of(wrapped))
    assert bits(plain.state_dict()) == bits(wrapped.module.state_dict())


def test_what_differs_beside_the_wrapping_is_said_too():
    said = refusal(nn.DataParallel(Net(width=16)), saved_of(Net()))
    assert "model.module" in said
    assert "body.0.weight is (32, 16) float32 in the checkpoint and (16, 16) float32 in the model" in said
    assert "Build the model as it was built" in said


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (lambda: Net().to("meta"), "Materialise the model first"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "Run one forward pass first"),
    ],
)
def test_a_model_without_memory_or_shapes_gets_the_advice_that_fits_once(model, advice):
    tree = saved_of(Net() if "Mat" in advice else nn.Sequential(nn.Linear(2, 3)))
    said = refusal(model(), tree)
    assert said.count(advice) == 1
    assert "Build the model" not in said


def test_both_are_advised_where_both_are_needed():
    model = Net()
    model.head = nn.Linear(32, 4, device="meta")
    model.more = nn.Linear(2, 2)
    said = refusal(model, saved_of(Net()))
    assert "more.weight is not in the checkpoint" in said
    assert "Build the model" in said
    assert "Materialise the model first" in said


def test_several_models_are_named():
    models = {"a": Net(), "b": nn.DataParallel(Net())}
    tree = stored(capture(Subject({"a": Net(), "b": Net()}), 1))
    with pytest.raises(StateMismatchError, match=r"begin with b\.module\."):
        put_back(Subject(models), tree)
    tree["model"]["a"] = [torch.ones(1)]
    with pytest.raises(StateMismatchError, match="a is list in the checkpoint"):
        put_back(Subject(models), tree)


class Bank(nn.Module):
    """Keeps what it has seen: takes the shape of what it loads, and rows by name that it did not have."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("bank", torch.zeros(0, 4))

    def forward(self, x):
        if self.training:
            self.bank = torch.cat([self.bank, x.detach()[:1]])
            self.register_buffer(f"row{len(self.bank)}", x.detach()[0].clone())
        return self.inner(x)

    def _load_from_state_dict(self, state, prefix, *rest):
        self.bank = torch.empty_like(state[prefix + "bank"])
        for name in state:
            if name.startswith(prefix + "row"):
                self.register_buffer(name.removeprefix(prefix), torch.empty_like(state[name]))
        super()._load_from_state_dict(state, prefix, *rest)


def with_bank():
    return nn.Sequential(nn.Linear(8, 4), Bank(), nn.Linear(4, 2))


def in_training():
    """Quantisation-aware: observers take their shapes from the first batch."""
    model = nn.Sequential(quantization.QuantStub(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(model.train())


GROWING = {
    "a buffer that grows": with_bank,
    "the model itself": Bank,
    "compiled": lambda: torch.compile(with_bank(), backend="eager"),
    "wrapped inside": lambda: nn.Sequential(nn.Linear(8, 8), checkpoint_wrapper(with_bank())),
    "wrapped": lambda: checkpoint_wrapper(Bank()),
    "observers": in_training,
}


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:Please use quant_min")
@pytest.mark.parametrize("make", GROWING.values(), ids=GROWING)
def test_a_model_that_takes_other_shapes_as_it_loads_is_restored(tmp_path, make):
    def build():
        torch.manual_seed(0)
        model = make()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = build()
    width = next(model.parameters()).shape[-1]
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as checkpoints:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, width)).square().mean().backward()
            optimizer.step()
            checkpoints.step()
    resumed, again = build()
    assert dq.Checkpointer(tmp_path, resumed, again).restore() == 4
    assert bits(resumed.state_dict()) == bits(model.state_dict())
    assert bits(again.state_dict()["state"]) == bits(optimizer.state_dict()["state"])


def test_beside_such_a_module_the_others_are_compared_as_ever():
    saved = with_bank()
    saved(torch.ones(1, 8))
    model = with_bank()
    model[2] = nn.Linear(4, 3)
    before = bits(model.state_dict())
    said = refusal(model, saved_of(saved))
    assert "2.weight is (2, 4) float32 in the checkpoint and (3, 4) float32 in the model" in said
    assert "bank" not in said
    assert "othing was restored" in said
    assert bits(model.state_dict()) == before


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is (deprecated|not supported)")
def test_torchs_own_ways_that_load_plainly_are_no_reason_to_compare_nothing():
    parts = (
        nn.BatchNorm1d(2),
        nn.InstanceNorm1d(2),
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
        checkpoint_wrapper(nn.Linear(2, 2)),
        nn.LazyLinear(2),
        nn.TransformerEncoderLayer(4, 2, 4),
        torch.jit.script(nn.Linear(2, 2)),
    )
    assert own_ways(nn.DataParallel(nn.Sequential(*parts))) == []
    assert own_ways(nn.ModuleDict({"a": Bank()})) == ["a"]
