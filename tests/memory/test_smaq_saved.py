"""Feature maps as packed bytes: memory falls, gradients stay near, and nothing is packed twice or wrongly."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import smaq
from dynaquant_core.memory.smaq.memory_layout import flat_run
from tests.memory.nets import ONLY_MAPS, conv_net, images, mlp, rows


def saved_bytes(model, batch):
    """What autograd keeps of a forward pass, counted here: each storage once, no parameters, no batch."""
    spared = {
        tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers(), batch]
    }
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in spared:
            kept[storage.data_ptr()] = storage  # alive until counted, so that no address is taken twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(batch)
    return sum(storage.nbytes() for storage in kept.values()), out


def packed_bytes(model, batch):
    """The same of what our hooks leave behind: packed tensors, and tensors left alone."""
    left = {}
    spared = {
        tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers(), batch]
    }
    with smaq.apply(model, **ONLY_MAPS) as handle:
        coder = handle._coder
        takes = coder.takes

        def watched(tensor):
            if not takes(tensor) and tensor.untyped_storage().data_ptr() not in spared:
                left[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return takes(tensor)

        coder.takes = watched
        out = model(batch)
    return handle.report()["memory"]["live"] + sum(storage.nbytes() for storage in left.values()), out


class Gated(nn.Module):
    """A gate that is kept in float16, whatever autocast takes."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Linear(64, 64), nn.Parameter(torch.ones(64, dtype=torch.float16))

    def forward(self, inputs):
        return functional.gelu(self.inner(inputs).half() * self.gate)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_maps_of_either_half_are_packed_inside_autocast(dtype):
    """It raised where a map is of the half that autocast does not take."""
    torch.manual_seed(0)
    model = Gated()
    with smaq.apply(model, **ONLY_MAPS) as handle, torch.autocast("cpu", dtype):
        out = model(torch.randn(512, 64))
        assert handle.report()["memory"]["live"] > 0
    out.float().square().mean().backward()
    assert model.gate.grad.abs().sum() > 0


@pytest.mark.parametrize("case", ["not finite", "small", "empty"])
def test_a_forward_pass_without_a_backward_one_is_freed(case):
    """A batch that is skipped: operations that save their output (tanh) must not hold it for good."""
    model = nn.Sequential(nn.Linear(8, 8 if case == "small" else 2000), nn.Tanh(), nn.Sigmoid())
    alive = []
    with smaq.apply(model, **ONLY_MAPS):
        for _ in range(3):
            batch = torch.randn(0 if case == "empty" else 4, 8)
            if case == "not finite":
                batch[0, 0] = float("nan")
            alive.append(weakref.ref(model(batch)))
        gc.collect()
    assert [one() for one in alive] == [None] * 3


def test_saved_maps_of_a_conv_net_take_a_quarter_at_most():
    batch, _ = images(count=32)
    before, out = saved_bytes(conv_net(), batch)
    after, packed_out = packed_bytes(conv_net(), batch)
    assert before > 4 * after
    assert torch.equal(out, packed_out), "the forward pass is exact"


def gradient(act, form=None, seed=0):
    """Of all parameters of a small network, flat; with a format its maps are packed."""
    model, stream = mlp(act=act), torch.Generator().manual_seed(seed)
    handle = form and smaq.apply(model, **ONLY_MAPS, format=form, generator=stream, smallest=64)
    inputs, labels = rows(count=256)
    functional.cross_entropy(model(inputs), labels).backward()
    assert not handle or handle.report()["saved"]["tensors"] >= 2
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.Tanh])
def test_gradients_come_near_and_what_rounding_adds_cancels(act):
    exact = gradient(act)
    assert (gradient(act, "smaq") - exact).norm() < 0.25 * exact.norm()
    wide = {"name": "smaq", "limit": 5.0}  # nothing is clamped, so that only rounding is left
    found = torch.stack([gradient(act, wide, seed) for seed in range(16)])
    one, mean = (found[0] - exact).norm(), (found.mean(0) - exact).norm()
    assert one < 0.1 * exact.norm()
    assert mean < (0.85 if act is nn.GELU else 0.4) * one, "GELU's slope bends, and so does its average"


def test_a_tensor_that_two_nodes_save_is_packed_once():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))  # the rectifier's is saved twice
    with smaq.apply(model, **ONLY_MAPS) as handle:
        out = model(torch.randn(100, 64))
        assert handle.report()["saved"]["tensors"] == 1
        held = handle.report()["memory"]
        assert held["live_raw"] == 100 * 64 * 4
        out.sum().backward()
        del out
        gc.collect()
        assert handle.report()["memory"]["live"] == 0


class Reused(nn.Module):
    """Frees each map before it makes the next of the same size, which then lies where the other did."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, batch):
        total = 0.0
        for power in range(6):
            map_ = (batch + power) * self.scale
            total = total + (map_ * map_).sum()
            del map_
        return total


def test_another_tensor_at_the_same_address_is_another_one():
    batch = torch.randn(64, 64)
    wanted = Reused()
    wanted(batch).backward()
    model = Reused()
    with smaq.apply(model, **ONLY_MAPS, format="fp32") as handle:
        model(batch).backward()
    assert handle.report()["saved"]["tensors"] >= 6
    assert torch.allclose(model.scale.grad, wanted.scale.grad, rtol=1e-6)


def test_a_tensor_written_to_between_two_saves_is_packed_again():
    class Written(nn.Linear):
        def forward(self, batch):
            held = super().forward(batch).detach()
            first = (held * self.weight[0, 0]).sum()
            held.mul_(3)
            return first + (held * self.weight[0, 0]).sum()

    model = Written(64, 64)
    with smaq.apply(model, **ONLY_MAPS, format="fp32") as handle:
        batch = torch.randn(64, 64)
        model(batch).backward()
        assert handle.report()["saved"]["tensors"] == 2
    wanted = 4 * nn.functional.linear(batch, model.weight, model.bias).sum()
    assert torch.allclose(model.weight.grad[0, 0], wanted, rtol=1e-4)


def views(base):
    yield base.t()
    yield base[:, None].expand(40, 3, 60)
    yield base[::2, 5:50]
    yield base.as_strided((50, 40), (10, 1), 3)  # overlaps itself
    yield base.view(10, 4, 60).permute(2, 0, 1)
    yield base[7]
    yield base[:, :1].expand(40, 60).t()
    yield torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    yield base.flatten()[::3]


@pytest.mark.parametrize("index", range(9))
def test_views_come_back_as_they_were(index):
    tensor = list(views(torch.randn(40, 60)))[index]
    run, view = flat_run(tensor)
    assert torch.equal(view.of(run.clone()), tensor)
    storage = tensor.untyped_storage().nbytes() // 4
    assert run.numel() <= min(storage, tensor.numel() if index != 3 else storage)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_any_permuted_or_cut_view_comes_back(shape, chance):
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    for dimension in range(tensor.dim()):
        if chance.random() < 0.3:
            tensor = tensor.narrow(dimension, 0, chance.randint(1, tensor.shape[dimension]))
    tensor = tensor.permute(chance.sample(range(tensor.dim()), tensor.dim()))
    if chance.random() < 0.3:
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    run, view = flat_run(tensor)
    assert torch.equal(view.of(run.clone()), tensor)


def test_a_forward_that_fails_leaves_no_hook_behind():
    model = mlp()
    with smaq.apply(model, **ONLY_MAPS) as handle:
        with pytest.raises(RuntimeError):
            model(torch.randn(100, 7))
        (torch.randn(100, 64, requires_grad=True) ** 2).sum().backward()  # outside of the model
        assert "saved" not in handle.report()
        model(rows()[0]).sum().backward()
        assert handle.report()["saved"]["tensors"] > 0


class Recursive(nn.Module):
    """Calls itself; is broken off at a depth."""

    def __init__(self):
        super().__init__()
        self.layer, self.breaks = nn.Linear(64, 64), False

    def forward(self, inputs, depth=2):
        if depth == 0 and self.breaks:
            raise KeyboardInterrupt
        inner = self(inputs, depth - 1) if depth else inputs
        return self.layer(inner).tanh()


@pytest.mark.parametrize("removed", [True, False])
def test_a_forward_that_ctrl_c_breaks_off_packs_nothing_afterwards(removed):
    model, batch = Recursive(), rows()[0]
    handle = smaq.apply(model, **ONLY_MAPS)
    model(batch).sum().backward()
    usual = handle.report()["saved"]["tensors"]
    model.breaks = True
    with pytest.raises(KeyboardInterrupt):
        model(batch)
    model.breaks = False
    if removed:
        handle.remove()
    else:
        model(batch).sum().backward()
        usual *= 2
    (torch.randn(100, 64, requires_grad=True) ** 2).sum().backward()  # outside of the model
    assert handle.report()["saved"]["tensors"] == usual
    handle.remove()


def test_a_map_that_is_not_finite_is_seen_by_the_training():
    model = mlp()
    with smaq.apply(model, **ONLY_MAPS, smallest=64) as handle:
        batch = rows()[0]
        batch[0, 0] = float("nan")
        model(batch).sum().backward()
    assert handle.report()["saved"]["not_finite"] > 0
    assert model[0].weight.grad.isnan().any()


def test_packing_serves_loops_that_do_not_call_the_model():
    model = mlp()
    with smaq.apply(model, **ONLY_MAPS) as handle:
        batch = rows()[0]
        with handle.packing(batch):
            loss = model[2](model[1](model[0](batch))).sum()
        assert handle.report()["memory"]["live"] > 0
        loss.backward()
    handle = smaq.apply(model, **ONLY_MAPS | {"feature_maps": None})
    with pytest.raises(ConfigError, match="feature_maps"), handle.packing():
        pass
    handle.remove()
