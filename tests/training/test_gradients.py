import gc

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from dynaquant_core.training.gradients import GradientCollector, moment_averages
from dynaquant_core.training.names import parameter_names
from tests.device.places import EVERYWHERE
from tests.gloo import leave
from tests.packed import PackedMomentum
from tests.training.models import Net, gpt_loss, net_loss, one_step, seed_everything, small_gpt


def collector_for(model, *optimizers):
    collector = GradientCollector(optimizers, parameter_names({"": model}))
    collector.start()
    return collector


def reference_average(gradients):
    """Paper sec. 4.1 in float64."""
    average = gradients[0].double()
    for gradient in gradients[1:]:
        average = 0.9 * gradient.double() + 0.1 * average
    return average


def test_the_average_weighs_the_new_gradient_with_nine_tenths():
    seed_everything()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    collector = collector_for(model, optimizer)
    seen = {name: [] for name, _ in model.named_parameters()}
    for _ in range(6):
        one_step(model, optimizer, net_loss)
        for name, parameter in model.named_parameters():
            seen[name].append(parameter.grad.clone())
    averages = collector.averages()
    assert set(averages) == set(seen)
    for name, gradients in seen.items():
        torch.testing.assert_close(
            averages[name].double(), reference_average(gradients), rtol=1e-5, atol=1e-7
        )


def test_nothing_is_recorded_outside_the_window_and_a_window_starts_anew():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = collector_for(model, optimizer)
    one_step(model, optimizer, net_loss)
    collector.stop()
    one_step(model, optimizer, net_loss)
    assert collector.averages() == {}
    collector.start()
    one_step(model, optimizer, net_loss)
    assert torch.equal(collector.averages()["head.weight"], model.head.weight.grad)


def test_averages_do_not_change_when_the_gradient_is_overwritten():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = collector_for(model, optimizer)
    one_step(model, optimizer, net_loss)
    before = collector.averages()["head.weight"].clone()
    optimizer.zero_grad(set_to_none=False)
    assert torch.equal(collector.averages()["head.weight"], before)
    assert before.abs().sum() > 0


def test_missing_and_non_finite_gradients_leave_the_average_as_it_was():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    collector = collector_for(model, optimizer)

    def step(a, b):
        for name, value in (("a", a), ("b", b)):
            weight = model[name].weight
            weight.grad = None if value is None else torch.full_like(weight, value)
        optimizer.step()

    step(1.0, None)
    step(2.0, 4.0)
    step(None, float("nan"))
    step(float("inf"), None)
    averages = collector.averages()
    assert averages["a.weight"].unique().tolist() == pytest.approx([1.9])
    assert averages["b.weight"].unique().tolist() == [4.0]
    assert set(averages) == {"a.weight", "b.weight"}


def test_sparse_gradients_become_dense():
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    collector = collector_for(model, optimizer)
    model(torch.tensor([1, 1, 4])).sum().backward()
    optimizer.step()
    assert collector.averages()["weight"].sum(1).tolist() == [0.0, 6.0, 0.0, 0.0, 3.0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_of_a_sharded_gradient_the_local_shard_counts(tmp_path):
    dist = torch.distributed
    from torch.distributed.tensor import DeviceMesh, DTensor, Shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:

        def sharded(local):  # nothing is sent: see test_plugin_rest.py
            return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

        mesh = DeviceMesh("cpu", [0])
        weight = nn.Parameter(sharded(torch.ones(4, 2)))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        collector = GradientCollector([optimizer], {weight: ("weight",)})
        collector.start()
        weight.grad = sharded(torch.full((4, 2), 3.0))
        optimizer.step()
        average = collector.averages()["weight"]
        assert type(average) is torch.Tensor
        assert torch.equal(average, torch.full((4, 2), 3.0))
    finally:
        leave()


def test_several_optimizers_tied_and_frozen_parameters():
    seed_everything()
    model = small_gpt()
    model.wpe.weight.requires_grad_(False)
    head, body = [model.wte.weight], list(model.blocks.parameters())
    optimizers = torch.optim.SGD(head, lr=0.1), torch.optim.AdamW(body, lr=1e-3)
    collector = collector_for(model, *optimizers)
    gpt_loss(model).backward()
    for optimizer in optimizers:
        optimizer.step()
    averages = collector.averages()
    assert averages["head.weight"] is averages["wte.weight"]
    assert "wpe.weight" not in averages
    assert torch.equal(averages["blocks.0.attn.qkv.weight"], model.blocks[0].attn.qkv.weight.grad)


@EVERYWHERE
@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_seen_unscaled_and_skipped_steps_not_at_all(fused, device):
    """The bias of the step that is left out is finite, and would show."""
    layer = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.0, fused=fused)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    collector = collector_for(layer, optimizer)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        inputs = torch.ones(2, 4, device=device)
        inputs[:, 0] = factor
        weight = 1.0 if factor == 1 else 100.0
        scaler.scale(weight * layer(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    averages = collector.averages()
    assert averages["weight"].tolist() == [[2.0, 2.0, 2.0, 2.0]]
    assert averages["bias"].tolist() == [2.0]


def test_close_takes_the_hooks_off():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = collector_for(model, optimizer)
    collector.close()
    assert not optimizer._optimizer_step_post_hooks
    one_step(model, optimizer, net_loss)
    assert collector.averages() == {}


def test_first_moments_stand_in_where_nothing_was_recorded():
    model = small_gpt()
    names = parameter_names({"": model})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert moment_averages([optimizer], names) == {}
    one_step(model, optimizer, gpt_loss)
    found = moment_averages([optimizer], names)
    assert set(found) == {name for aliases in names.values() for name in aliases}
    assert moment_averages([torch.optim.SGD(model.parameters(), lr=1e-3)], names) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the side stream cannot be tested")
@pytest.mark.parametrize("set_to_none", [True, False])
def test_on_cuda_the_averages_are_those_of_the_cpu(set_to_none):
    seed_everything()
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    collector = collector_for(model, optimizer)
    seen = {name: [] for name, _ in model.named_parameters()}
    for _ in range(8):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.randn(64, 512, device="cuda")).square().mean().backward()
        for name, parameter in model.named_parameters():
            seen[name].append(parameter.grad.cpu())
        optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)
    for name, average in collector.averages().items():
        torch.testing.assert_close(average.double(), reference_average(seen[name]), rtol=1e-5, atol=1e-7)


def test_a_table_that_is_resized_begins_a_new_average():
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = collector_for(model, optimizer)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    model.weight.data = torch.cat([model.weight.data, torch.zeros(2, 4)])
    model.weight.grad = None
    model(torch.full((1, 4), 2.0)).sum().backward()
    optimizer.step()
    assert torch.equal(collector.averages()["weight"], torch.full((5, 4), 2.0))


def test_a_collector_that_was_given_up_is_forgotten():
    """It would go on copying every gradient of a long training."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = GradientCollector([optimizer], parameter_names({"": model}))
    collector.start()
    assert len(optimizer._optimizer_step_post_hooks) == 1
    del collector
    gc.collect()
    GradientCollector([optimizer], parameter_names({"": model})).close()
    assert not optimizer._optimizer_step_post_hooks, "whoever comes next takes it off"


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch's own, of what the compiler imports
def test_a_compiled_step_has_the_graphs_that_it_has_without_us():
    """Our hook was compiled too: seven graphs in place of two, and warnings that point into it."""

    def graphs(*, collected):
        torch._dynamo.reset()
        counter = CompileCounter()
        weight = nn.Parameter(torch.ones(8))
        optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1), momentum=0.9)
        collector = GradientCollector([optimizer] if collected else [], {weight: ("weight",)})
        collector.start()
        step = torch.compile(lambda: optimizer.step(), backend=counter)
        for _ in range(3):
            weight.grad = torch.ones(8)
            step()
        assert bool(collector.averages()) == collected
        collector.close()
        return counter.frame_count

    assert graphs(collected=True) == graphs(collected=False)


def test_an_optimizer_that_holds_nothing_for_some_parameters_and_notes_of_its_own_takes_its_steps():
    """ZeRO leaves None for what other ranks hold, and ours ended the training at its next step."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    one_step(model, optimizer, net_loss)
    held = dict(optimizer.state)
    optimizer.state.clear()
    optimizer.state.update({"shared": [1], model.norm.weight: None} | held)
    optimizer.state[model.norm.bias] = {"codes": torch.zeros(3)}
    averages = moment_averages([optimizer], parameter_names({"": model}))
    assert "head.weight" in averages
    spares = SGDWithNotes(model.parameters(), lr=0.1)
    collector = GradientCollector([spares], parameter_names({"": model}), spare=True)
    collector.start()
    one_step(model, spares, net_loss)
    assert torch.equal(collector.averages()["head.weight"], model.head.weight.grad)


class SGDWithNotes(torch.optim.SGD):
    """Keeps something of no parameter, and None of one, in its state."""

    def step(self, closure=None):
        super().step(closure)
        self.state["seen"] = 3
        self.state[self.param_groups[0]["params"][0]] = None


def test_an_average_of_a_class_that_cannot_be_computed_with_is_none():
    """Of 8 or 4 bits, as torchao's; then gradients are recorded, as for an optimizer that keeps none."""
    model = Net()
    optimizer = PackedMomentum(model.parameters())
    names = parameter_names({"": model})
    collector = GradientCollector([optimizer], names, spare=True)
    collector.start()
    one_step(model, optimizer, net_loss)
    assert moment_averages([optimizer], names) == {}
    assert torch.equal(collector.averages()["head.weight"], model.head.weight.grad)
