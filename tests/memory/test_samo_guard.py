"""What SAMO refuses because it would go wrong in silence: another order of memory, gradients nobody sees."""

import copy
import sys
from functools import partial
from threading import Thread

import pytest
import torch
from torch import nn

from dynaquant_core.errors import ConfigError, GradientError, StateMismatchError
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo import guard, unchanged
from tests.memory.samo_nets import conv, gpt, loss_of


def wrapped(model, lr=0.0, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return optimizer, samo.wrap(model, optimizer, **({"sparsity": 0.5, "dtype": torch.float32} | options))


def channels_last(model):
    model.to(memory_format=torch.channels_last)


def contiguous(model):
    weight = model.body[3].weight
    weight.data = weight.data.contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", [channels_last, contiguous])
def test_another_order_of_memory_is_refused_before_anything_is_written(change, dtype):
    """The index counts places in memory: in another order the step would scatter weights over the layer."""
    model = conv()
    if change is contiguous:
        channels_last(model)
    optimizer, handle = wrapped(model, dtype=dtype)
    before = copy.deepcopy(model.state_dict())
    change(model)
    loss_of(model, 0).backward()
    with_closure = partial(optimizer.step, partial(loss_of, model, 0))
    for act in (optimizer.step, with_closure, optimizer.state_dict, handle.masks, handle.unwrap):
        with pytest.raises(
            StateMismatchError, match=r"had shape .* when wrapped and has .*nothing was written"
        ):
            act()
    model.to(memory_format=torch.channels_last if change is contiguous else torch.contiguous_format)
    optimizer.step()  # undone, it goes on
    weights = {name: one for name, one in model.state_dict().items() if "running" not in name}
    assert all(torch.equal(one, before[name]) for name, one in weights.items() if "tracked" not in name)
    handle.unwrap()


def test_strides_of_dimensions_of_one_element_say_nothing():
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8, 4))
    optimizer, _ = wrapped(model)
    before, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    channels_last(model)
    model(torch.randn(2, 8, 1, 1)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(state)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gradient_written_into_the_model_is_refused_and_one_for_the_handle_steps(dtype):
    model = nn.Linear(8, 4)
    optimizer, handle = wrapped(model, lr=1.0, dtype=dtype)
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises(GradientError, match=r"'weight' was written into the model.*handle.parameters\(\)"):
        optimizer.step()
    assert torch.equal(model.weight, before)
    model.weight.grad = None
    compressed = next(iter(handle.parameters()))
    compressed.grad = torch.ones_like(compressed)
    optimizer.step()
    mask = handle.masks()["weight"]
    assert torch.equal(model.weight, torch.where(mask, before - 1, before).to(dtype))


def test_what_backward_and_accumulation_leave_in_the_model_is_no_such_gradient():
    model = gpt()
    optimizer, _ = wrapped(model, lr=0.1, dtype=torch.bfloat16)
    trained = [one for one in model.parameters() if one.requires_grad]
    loss = loss_of(model, 0)
    loss.backward(retain_graph=True)
    loss.backward(inputs=trained)
    model.zero_grad(set_to_none=False)
    optimizer.zero_grad(set_to_none=False)
    torch.autograd.grad(loss_of(model, 1), trained)
    for _ in range(2):
        loss_of(model, 2).backward()
    optimizer.step()


class Vectors(nn.Module):
    """Vectors in the shape of matrices: a class token, a layer's scale, the lengths of a weight norm."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.scale = nn.Parameter(torch.randn(32, 1, 1))
        self.one = nn.Parameter(torch.randn(1, 1))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
        self.positions = nn.Parameter(torch.randn(1, 16, 32))


def test_vectors_in_the_shape_of_matrices_stay_whole():
    model = Vectors()
    _, handle = wrapped(model, sparsity=0.9)
    assert set(handle.masks()) == {"normed.parametrizations.weight.original1", "positions"}
    handle.unwrap()
    mask = {"scale": torch.arange(32).view(32, 1, 1) < 8}  # who wants it otherwise says so
    assert wrapped(model, sparsity=None, mask=mask)[1].masks()["scale"].sum() == 8


class Sparse(nn.Module):
    """An embedding whose gradient is sparse, and a layer behind it."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4)

    def forward(self, rows):
        return self.out(self.table(rows))


def test_a_sparse_gradient_that_is_not_finite_never_reaches_the_weights():
    torch.manual_seed(0)
    model = Sparse()
    optimizer, _ = wrapped(model, lr=0.1)
    before = model.table.weight.detach().clone()
    found = model.table(torch.tensor([1, 2]))
    found.register_hook(lambda gradient: gradient * float("nan"))
    model.out(found).sum().backward()
    with pytest.raises(GradientError, match=r"table\.weight"):
        optimizer.step()
    assert torch.equal(model.table.weight, before)


@pytest.mark.parametrize("options", [{"dtype": torch.float16}, {"loss_scale": 8.0}])
def test_a_second_optimizer_whose_gradients_nobody_would_unscale_is_refused(options):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    settings = {"sparsity": 0.5, "dtype": torch.float32} | options
    with pytest.raises(ConfigError, match=r"'1\.weight', '1\.bias' require gradients, but the optimizer"):
        samo.wrap(model, first, **settings)
    assert model[1].weight.dtype == torch.float32
    model[1].requires_grad_(False)
    samo.wrap(model, first, **settings).unwrap()


def test_a_group_that_is_none_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="group must be a process group"):
        wrapped(nn.Linear(8, 8), group=3)


def test_a_model_is_walked_through_again_only_where_it_changed(monkeypatch):
    looks = []
    monkeypatch.setattr(
        unchanged, "require_same", lambda *given: looks.append(1) or guard.require_same(*given)
    )
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer, _ = wrapped(model)
    optimizer.step()
    assert not looks
    model.append(nn.Linear(8, 8).requires_grad_(False))
    optimizer.step()
    optimizer.step()
    assert len(looks) == 1
    model[2].weight = nn.Parameter(torch.ones(8, 8), requires_grad=False)  # nobody trains it
    optimizer.step()
    assert len(looks) == 2
    for layer in (nn.Linear(8, 8), copy.deepcopy(model[1])):
        former, model[1] = model[1], layer
        for _ in range(2):
            with pytest.raises(StateMismatchError, match=r"'1\.weight' was replaced"):
                optimizer.step()
        model[1] = former
        optimizer.step()


def test_a_table_of_parameters_that_was_replaced_whole_is_refused():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer, _ = wrapped(model)
    model[0].__setstate__({**model[0].__dict__, "_parameters": dict(nn.Linear(8, 8)._parameters)})
    with pytest.raises(StateMismatchError, match=r"'0\.weight' was replaced"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_replaced_parameter_is_refused_and_so_is_a_cast_one(dtype):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer, _ = wrapped(model, dtype=dtype)
    former, model[0].weight = model[0].weight, nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(StateMismatchError, match=r"'0\.weight' was replaced"):
        optimizer.step()
    model[0].weight = former
    optimizer.step()
    model.double()
    with pytest.raises(StateMismatchError, match=r"and is torch\.float64"):
        optimizer.step()
    model.to(dtype)
    optimizer.step()


def test_a_gradient_that_another_hook_freed_is_an_error_and_the_next_step_goes_on():
    model = conv()

    def freed(parameter):
        parameter.grad = None

    handle = model.body[3].weight.register_post_accumulate_grad_hook(freed)
    optimizer, _ = wrapped(model, lr=0.1)
    with pytest.raises(GradientError, match=r"gradient of 'body.3.weight' was gone .* freed by another hook"):
        loss_of(model, 0).backward()
    handle.remove()
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    optimizer.step()


def test_two_threads_that_run_backward_at_once_lose_nothing_in_silence(request):
    """Their gradients add up as they do one after the other, or one of them is told."""
    silent, interval = 0, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    request.addfinalizer(partial(sys.setswitchinterval, interval))
    for seed in range(60):
        torch.manual_seed(seed)
        model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)])
        inputs, told = torch.randn(2, 64, 32), []
        optimizer, _ = wrapped(model)
        backward = partial(_backward, model, inputs, told)
        backward(0), backward(1)
        expected = _gradients(optimizer)
        optimizer.zero_grad()
        running = [Thread(target=backward, args=(one,)) for one in range(2)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        pairs = zip(_gradients(optimizer), expected, strict=True)
        silent += not told and not all(torch.allclose(got, right, atol=1e-4) for got, right in pairs)
    assert silent == 0


def _backward(model, inputs, told, one):
    try:
        model(inputs[one]).square().sum().backward()
    except (RuntimeError, GradientError) as error:  # autograd's own, or ours
        told.append(error)


def _gradients(optimizer):
    stepped = [one for group in optimizer.param_groups for one in group["params"]]
    return [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in stepped]
