"""Half precision: what is rounded where, loss scaling, overflow."""

import logging

import pytest
import torch
from torch import nn

from dynaquant_core.errors import GradientError, StateMismatchError
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS, conv, gpt, loss_of


def wrapped(build=gpt, make=OPTIMIZERS["adamw"], **options):
    model = build()
    optimizer = make(model.parameters())
    return model, optimizer, samo.wrap(model, optimizer, **({"sparsity": 0.8} | options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", [gpt, conv])
def test_theta16_is_theta32_rounded_and_zero_elsewhere(build, dtype):
    model, optimizer, handle = wrapped(build, dtype=dtype)
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(model, step % 2)
        assert loss.dtype == torch.float32
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    masks = handle.masks()
    masters = {slot.name: slot.master for slot in handle.engine.slots}
    assert all(one.dtype == torch.float32 for one in handle.parameters())
    for name, parameter in model.named_parameters():
        if name in masks:
            mask = masks[name]
            assert not parameter[~mask].any()
            # ascending places of contiguous weights are the order of boolean indexing
            assert torch.equal(parameter[mask], masters[name].to(dtype))
        else:
            assert torch.equal(parameter, masters[name].to(parameter.dtype))


def test_batch_norms_stay_in_float32_and_tied_weights_tied():
    model, _, _ = wrapped(conv)
    assert {one.dtype for one in model.body[1].state_dict().values()} == {torch.float32, torch.int64}
    assert model.body[0].weight.dtype == torch.float16
    model, _, _ = wrapped(embeddings=True)
    assert model.head.weight is model.wte.weight
    assert int(model.wte.weight.count_nonzero()) == model.wte.weight.numel() - round(
        0.8 * model.wte.weight.numel()
    )


def test_master_weights_remember_what_half_precision_cannot():
    """Updates below half's resolution add up in theta32."""
    model, optimizer, _ = wrapped(make=lambda p: torch.optim.SGD(p, lr=1e-5))
    weight = model.blocks[0].expand.weight
    start = weight.detach().clone()
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        optimizer.step()
    assert not torch.equal(weight, start)


def test_a_static_scale_is_exact_and_leaves_out_steps_that_overflow(caplog):
    runs = []  # a scale that is a power of two rounds nothing
    for scale in (None, 256.0):
        model, optimizer, handle = wrapped(dtype=torch.bfloat16, loss_scale=scale)
        for step in range(5):
            optimizer.zero_grad()
            for part in range(2):
                handle.scale(loss_of(model, 2 * step + part)).backward()
            torch.nn.utils.clip_grad_norm_(handle.parameters(), 0.5)
            optimizer.step()
        runs.append(model.state_dict())
    assert all(torch.equal(one, runs[1][name]) for name, one in runs[0].items())
    before = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer.zero_grad()
    (handle.scale(loss_of(model, 0)) * torch.inf).backward()
    with caplog.at_level(logging.WARNING):
        optimizer.step()
    assert handle.skipped == 1
    assert "overflowed" in caplog.text
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    optimizer.zero_grad()
    handle.scale(loss_of(model, 1)).backward()
    optimizer.step()
    assert handle.skipped == 1
    assert not all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_small_gradients_survive_float16_only_under_a_scale():
    found = []
    for scale in (None, 2.0**12):
        model, _, handle = wrapped(loss_scale=scale)
        handle.scale(loss_of(model, 0) * 1e-6).backward()
        found.append(
            sum(int(one.grad.count_nonzero()) for one in handle.parameters() if one.grad is not None)
        )
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_works_on_the_optimizer_as_ever(fused):
    model, optimizer, _ = wrapped(
        make=lambda p: torch.optim.AdamW(p, lr=3e-3, fused=fused), dtype=torch.float16
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    for _ in range(40):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, 0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() == 2.0**39:  # the first step overflowed: nothing moved
            assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert scaler.get_scale() < 2.0**30
    assert float(loss_of(model, 0).detach()) < 2.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_refused_and_nothing_is_stepped(bad):
    model, optimizer, handle = wrapped(dtype=torch.float32)
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    moments = {key: one["exp_avg"].clone() for key, one in optimizer.state_dict()["state"].items()}
    (loss_of(model, 0) * bad).backward()
    with pytest.raises(GradientError, match=r"gradient of '.*' holds NaN or infinity; nothing was stepped"):
        optimizer.step()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(
        torch.equal(one["exp_avg"], moments[key]) for key, one in optimizer.state_dict()["state"].items()
    )
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    optimizer.step()
    assert handle.skipped == 0


@pytest.mark.parametrize("how", ["unfrozen", "added"])
def test_a_parameter_that_is_trained_later_is_refused_not_stepped_with_a_scaled_gradient(how):
    """As in gradual unfreezing: it has no theta32, and nothing would take the scale off its gradient."""
    model = conv()
    model.head.requires_grad_(requires_grad=False)
    held = list(model.parameters()) if how == "unfrozen" else list(model.body.parameters())
    optimizer = torch.optim.SGD(held, lr=0.1)
    handle = samo.wrap(model, optimizer, sparsity=0.5, loss_scale=1024.0)
    handle.scale(loss_of(model, 0)).backward()
    optimizer.step()
    model.head.requires_grad_(requires_grad=True)
    if how == "added":
        optimizer.add_param_group({"params": list(model.head.parameters())})
    before = [one.clone() for one in model.parameters()]
    handle.scale(loss_of(model, 1)).backward()
    with pytest.raises(StateMismatchError, match=r"frozen or not in.*'head.weight', 'head.bias';.*unwrap"):
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    handle.unwrap()
    optimizer.zero_grad()
    handle = samo.wrap(model, optimizer, sparsity=0.5, loss_scale=1024.0)
    handle.scale(loss_of(model, 2)).backward()
    optimizer.step()
    assert not torch.equal(model.head.weight, before[-2])


@pytest.mark.filterwarnings("default:`torch.jit.script_method` is deprecated")  # of what Dynamo imports
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_compiled_step_is_the_same_step(dtype):
    def life(*, compiled):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
        step = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for seed in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
            model(inputs).square().mean().backward()
            step()
        return model[0].weight

    assert torch.equal(life(compiled=True), life(compiled=False))
