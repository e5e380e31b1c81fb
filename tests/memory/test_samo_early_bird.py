"""The ticket is drawn when the mask has settled, and training goes on from there."""

import pytest
import torch

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS, conv, equal, gpt, loss_of, twin


def masks_at(distance, size=1000):
    """A mask, and one that is ``distance`` of all weights away from it."""
    first = torch.zeros(size, dtype=torch.bool)
    first[: size // 2] = True
    second = first.clone()
    second[: round(distance * size)] = False
    return {"w": first.view(10, -1)}, {"w": second.view(10, -1)}


@pytest.mark.parametrize(("distance", "drawn"), [(0.099, True), (0.1, False), (0.3, False)])
def test_the_distance_is_a_share_of_all_weights_and_must_be_below_a_tenth(distance, drawn):
    bird = samo.EarlyBird()
    first, second = masks_at(distance)
    assert [bird.look(first) for _ in range(5)] == [False] * 5
    assert bird.look(second) is drawn


def test_each_of_the_last_five_counts():
    bird = samo.EarlyBird()
    first, second = masks_at(0.2)
    looks = [bird.look(mask) for mask in (first, second, first, first, first, first, first, first)]
    assert looks == [False] * 7 + [True]  # the second one has to leave the window


def test_what_was_seen_survives_a_checkpoint():
    bird, other = samo.EarlyBird(), samo.EarlyBird(window=2)
    first, _ = masks_at(0.2)
    for _ in range(5):
        bird.look(first)
    other.load_state_dict(bird.state_dict())
    with pytest.raises(StateMismatchError, match="begin anew"):
        other.look({"v": first["w"]})
    assert other.look(first)


def test_until_the_draw_training_is_dense_and_then_goes_on_from_its_weights_and_moments():
    model = gpt()
    other = twin(model)
    optimizer, plain = (OPTIMIZERS["adamw"](one.parameters()) for one in (model, other))
    handle = samo.wrap(model, optimizer, sparsity=0.9, pruner="early_bird", dtype=torch.float32)
    drawn = []
    for epoch in range(7):
        for one, opt in ((model, optimizer), (other, plain)):
            loss_of(one, epoch).backward()
            opt.step()
            opt.zero_grad()
        if not handle.active:
            assert equal(model, other)
        drawn.append(handle.end_epoch())
    assert drawn == [False] * 5 + [True, False]
    assert handle.active
    assert handle.sparsity > 0.8
    weight, mask = model.blocks[0].expand.weight, handle.masks()["blocks.0.expand.weight"]
    assert not weight[~mask].any()
    moments = optimizer.state[
        next(s.master for s in handle.engine.slots if s.name == "blocks.0.expand.weight")
    ]
    assert moments["exp_avg"].numel() == mask.sum()
    assert moments["step"] == 7


def test_an_early_bird_starts_in_half_precision_too():
    model = conv()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.8, pruner=samo.EarlyBird(window=1), dtype=torch.bfloat16)
    assert model.head.weight.dtype == torch.bfloat16
    for _ in range(3):
        loss_of(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.end_epoch()
    assert handle.active
    assert int(model.head.weight.count_nonzero()) == 16


def test_a_mask_that_is_drawn_has_no_epochs():
    model = gpt()
    handle = samo.wrap(model, OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(ConfigError, match="for pruner='early_bird'"):
        handle.end_epoch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_that_wait_for_their_step_survive_the_draw(dtype):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype, pruner=samo.EarlyBird(window=1))
    assert not handle.end_epoch()
    inputs = torch.ones(2, 8, dtype=dtype)
    model(inputs).sum().backward()
    before = model.weight.detach().clone().float(), model.bias.detach().clone().float()
    assert handle.end_epoch()
    model(inputs).sum().backward()  # the accumulation goes on
    optimizer.step()
    kept = handle.masks()["weight"]
    moved = before[0] - model.weight.float(), before[1] - model.bias.float()
    assert moved[0][kept].tolist() == pytest.approx([2.0] * int(kept.sum()), abs=2e-3)
    assert moved[1].tolist() == pytest.approx([2.0] * 8, abs=2e-3)
