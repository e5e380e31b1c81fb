import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from dynaquant_core.training.capture import model_state
from dynaquant_core.training.names import canonical_keys, parameter_names
from tests.gloo import leave
from tests.training.models import Net, small_gpt


@pytest.fixture
def one_process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    leave()


class Nested(nn.Module):
    """Names of its own that look like a wrapper's, a compiled part, one module under two names."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.inner = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), backend="eager")
        self.again = self.module


def wrappings(model):
    ddp = nn.parallel.DistributedDataParallel
    return [
        model,
        torch.compile(model, backend="eager"),
        ddp(model),
        torch.compile(ddp(model), backend="eager"),
        ddp(torch.compile(model, backend="eager")),
    ]


@pytest.mark.parametrize("make", [Net, small_gpt, Nested])
def test_names_are_those_of_torch_however_the_model_is_wrapped(make, one_process_group):
    model = make()
    plain = {name.replace("_orig_mod.", "") for name in model.state_dict()}
    for wrapped in wrappings(model):
        assert set(model_state(wrapped)) == set(get_model_state_dict(wrapped)) == plain
        own = wrapped.state_dict()
        for name, key in canonical_keys(wrapped).items():
            assert own[key].data_ptr() == get_model_state_dict(wrapped)[name].data_ptr()


def test_the_states_tensors_are_the_models_own():
    model = Net()
    state = model_state(model)
    state["head.weight"].fill_(5.0)
    assert model.head.weight[0, 0] == 5.0


def test_a_model_without_tensors_has_an_empty_state():
    assert model_state(nn.Sequential(nn.ReLU())) == {}


def test_tied_parameters_have_all_their_names_and_models_their_prefix():
    gpt = small_gpt()
    names = parameter_names({"a": torch.compile(gpt, backend="eager"), "b": nn.Linear(1, 1)})
    assert names[gpt.head.weight] == ("a.wte.weight", "a.head.weight")
    assert "b.weight" in {name for aliases in names.values() for name in aliases}
