"""What SAMO cannot follow it refuses in one sentence, and leaves model and optimizer as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dynaquant_core.errors import ConfigError, GradientError, StateMismatchError
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo import casts, engine, expansion, gathering


def net(*, bias: bool = True) -> nn.Sequential:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16, bias=bias), nn.Tanh(), nn.Linear(16, 4, bias=bias))


def stepped(model, optimizer, steps=3, *, inside=True):
    """Some steps with a closure, as LBFGS takes them, or without."""
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))

    def closure():
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :4]).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        loss = optimizer.step(closure) if inside else closure()
        if not inside:
            optimizer.step()
    return loss.item()


# -- LBFGS ---------------------------------------------------------------------------------------


def test_lbfgs_is_unwrapped_once_it_has_forgotten_its_directions():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn="strong_wolfe")
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    before = stepped(model, optimizer)
    with pytest.raises(ConfigError, match="not one value a weight"):
        handle.unwrap()
    assert stepped(model, optimizer, 1) <= before  # still wrapped, and training
    optimizer.state.clear()
    handle.unwrap()
    assert stepped(model, optimizer) <= before


def test_a_ticket_is_not_drawn_under_lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
    handle = samo.wrap(model, optimizer, pruner=samo.EarlyBird(window=1, distance=1.0), dtype=torch.float32)
    stepped(model, optimizer, 1)
    with pytest.raises(ConfigError, match=r"optimizer\.state\.clear"):
        handle.end_epoch()
    optimizer.state.clear()
    assert any(handle.end_epoch() for _ in range(3))
    assert handle.sparsity > 0.5
    stepped(model, optimizer)


# -- Adafactor -----------------------------------------------------------------------------------


class AdafactorOfOthers(torch.optim.Adafactor):
    """As other libraries have it."""


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, AdafactorOfOthers])
def test_adafactor_is_unwrapped_once_it_has_forgotten_the_vectors(kind):
    """Of a matrix it keeps rows and columns, of a vector a value each."""
    model = net()
    optimizer = kind(model.parameters(), lr=0.01)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    before = stepped(model, optimizer, inside=False)
    with pytest.raises(ConfigError, match=r"of '0\.weight' is that of a vector.*optimizer\.state\.clear\(\)"):
        handle.unwrap()
    assert stepped(model, optimizer, 1, inside=False) <= before  # still wrapped, and training
    optimizer.state.clear()
    handle.unwrap()
    assert stepped(model, optimizer, inside=False) <= before


def test_adafactor_of_transformers_too():
    transformers = pytest.importorskip("transformers")
    model = net()
    optimizer = transformers.Adafactor(model.parameters(), lr=0.01, relative_step=False)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    stepped(model, optimizer, inside=False)
    with pytest.raises(ConfigError, match="of a vector"):
        handle.unwrap()
    optimizer.state.clear()
    handle.unwrap()
    stepped(model, optimizer, inside=False)


def test_adafactor_that_has_seen_no_matrix_as_a_vector_is_unwrapped():
    model = net()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    handle.unwrap()
    stepped(model, optimizer, inside=False)


# -- moments of single numbers -------------------------------------------------------------------


class Scaled(nn.Module):
    """A layer and one number, as CLIP's."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 16), nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs):
        """Scaled."""
        return self.layer(inputs) * self.scale


@pytest.mark.parametrize(
    "kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.ASGD, torch.optim.RMSprop]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_single_number_s_moments_follow_its_dtype(kind, dtype):
    torch.manual_seed(0)  # in float16 the smallest gradients underflow
    model = Scaled().to(dtype)
    optimizer = kind(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        model(torch.ones(3, 8, dtype=dtype)).float().square().mean().backward()
        optimizer.step()

    step()
    before = {
        key: value.dtype for key, value in optimizer.state[model.scale].items() if torch.is_tensor(value)
    }
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    step()
    handle.unwrap()
    step()
    after = {
        key: value.dtype for key, value in optimizer.state[model.scale].items() if torch.is_tensor(value)
    }
    assert before == after


# -- states --------------------------------------------------------------------------------------


def pair(mask, **options):
    """A wrapped net without biases."""
    model = net(bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    handle = samo.wrap(model, optimizer, mask, dtype=torch.float32, **options)
    return model, optimizer, handle


def masks():
    """One of each layer."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(shape, generator=generator) > 0.5 for shape in ((16, 8), (4, 16))]


def test_a_state_that_lacks_a_layer_is_refused_before_masks_change():
    first, last = masks()
    _, saved, _ = pair({"0.weight": first})
    state = copy.deepcopy(saved.state_dict())
    model, optimizer, handle = pair({"0.weight": ~first, "2.weight": last}, loss_scale=1024.0)
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(StateMismatchError, match=r"no theta32 of '2\.weight'"):
        optimizer.load_state_dict(state)
    assert torch.equal(handle.masks()["0.weight"], ~first)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("gone", ["layers", "active", "pruner", "bits", "theta32"])
def test_a_broken_state_is_named_so(gone):
    first, _ = masks()
    _, optimizer, _ = pair({"0.weight": first})
    state = copy.deepcopy(optimizer.state_dict())
    del (state["samo"] if gone in state["samo"] else state["samo"]["layers"][0])[gone]
    with pytest.raises(StateMismatchError, match="broken"):
        optimizer.load_state_dict(state)


# -- models --------------------------------------------------------------------------------------


def test_a_cast_model_is_refused_by_backward_save_and_unwrap():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    model.double()
    with pytest.raises(StateMismatchError, match="float64"):
        optimizer.state_dict()
    with pytest.raises(StateMismatchError, match="float64"):
        handle.unwrap()
    with pytest.raises(StateMismatchError, match="float64"):
        model(torch.ones(2, 8, dtype=torch.float64)).sum().backward()
    model.float()
    stepped(model, optimizer)
    handle.unwrap()


def test_a_lazy_model_and_masks_without_values_are_refused():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    with pytest.raises(ConfigError, match="no shape yet"):
        samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for mask in (
        torch.ones(16, 8, dtype=torch.bool).to_sparse(),
        torch.ones(16, 8, dtype=torch.bool, device="meta"),
    ):
        with pytest.raises(ConfigError, match="expected a dense bool tensor"):
            samo.wrap(model, optimizer, {"0.weight": mask})
    with pytest.raises(ConfigError, match="embeddings"):
        samo.wrap(model, optimizer, embeddings="no")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_that_steps_another_one_is_refused_by_the_next_backward(dtype):
    """The model never learnt of what it wrote: nothing was trained, without a word."""

    class Sharpness(torch.optim.SGD):
        """As those that climb first: it writes to weights in a method of its own."""

        @torch.no_grad()
        def climb(self):
            for group in self.param_groups:
                for one in group["params"]:
                    one.add_(one.grad, alpha=0.05)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = Sharpness(model.parameters(), lr=0.1)
    samo.wrap(model, optimizer, dtype=dtype, sparsity=0.5)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.climb()
    with pytest.raises(GradientError, match=r"weights of '2.\w+' were written to outside of its step\(\)"):
        model(torch.randn(8, 16)).square().mean().backward()


def test_a_state_that_was_loaded_before_wrap_is_named():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = build()
    samo.wrap(model, optimizer, dtype=torch.float32)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    fresh, dense = build()
    dense.load_state_dict(optimizer.state_dict())
    with pytest.raises(ConfigError, match=r"saved under samo.wrap: wrap first, then load it"):
        samo.wrap(fresh, dense, dtype=torch.float32)


# -- no memory left ------------------------------------------------------------------------------

#: What takes memory while a pair is wrapped, in the order in which it does.
HUNGRY = {
    "the kernel's trial": (engine, "try_kernels"),
    "the cast": (casts.Cast, "_turn"),
    "gradients": (engine, "buckets_of"),
    "moments": (engine, "swap_in"),
    "tables": (gathering.Gathering, "__init__"),
    "expansion": (expansion.Expansion, "run"),
}


def out_of_memory(monkeypatch, where):
    """There, when half of it is done."""
    owner, name = HUNGRY[where]
    true = getattr(owner, name)

    def fails(*given, **named):
        if name in ("_turn", "swap_in"):
            true(*given, **named)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(owner, name, fails)


def bits_of_pair(model, optimizer):
    weights = {name: one.detach().clone() for name, one in model.named_parameters()}
    return weights, copy.deepcopy(optimizer.state_dict()["state"]), [one.grad for one in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", HUNGRY)
def test_a_wrap_that_finds_no_memory_leaves_a_pair_that_trains_and_can_be_wrapped(monkeypatch, where, dtype):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer)
    model(torch.ones(1, 8)).sum().backward()  # an accumulation
    weights, state, gradients = bits_of_pair(model, optimizer)
    with monkeypatch.context() as patch:
        out_of_memory(patch, where)
        with pytest.raises(torch.OutOfMemoryError):
            samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    after, moments, now = bits_of_pair(model, optimizer)
    for number, entry in state.items():
        assert all(torch.equal(value, moments[number][key]) for key, value in entry.items())
    assert all(one is other for one, other in zip(gradients, now, strict=True))
    rounded = dtype != torch.float32 and where != "the kernel's trial"
    for name, weight in weights.items():
        assert torch.allclose(after[name], weight, rtol=2.0**-8 if rounded else 0, atol=0)
    stepped(model, optimizer, steps=1)
    assert all((one != weights[name]).any() for name, one in model.named_parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    before = handle.engine.slots[0].master.detach().clone()
    stepped(model, optimizer, steps=1)
    assert (handle.engine.slots[0].master != before).any()


def test_a_ticket_that_finds_no_memory_leaves_a_dense_pair(monkeypatch):
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    handle = samo.wrap(model, optimizer, pruner=samo.EarlyBird(window=1), dtype=torch.bfloat16)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    model(inputs).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    waiting = handle.engine.pending()
    with monkeypatch.context() as patch:
        out_of_memory(patch, "tables")
        assert not handle.end_epoch()
        with pytest.raises(torch.OutOfMemoryError):
            handle.end_epoch()
    for name, one in model.named_parameters():
        assert torch.equal(one.grad, waiting[name].bfloat16())
        assert {value.dtype for key, value in optimizer.state[one].items() if key != "step"} == {one.dtype}
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert (model[0].weight != before).any()
    samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16)
