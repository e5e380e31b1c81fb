"""A wrapped run is saved and restored like any other: the optimizer's state holds the mask once."""

import copy
import io
import os
import signal

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS, conv, equal, gpt, loss_of
from tests.programs import run
from tests.training.models import EXACT


def build(seed=0, net=gpt, **options):
    model = net(seed)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    return model, optimizer, samo.wrap(model, optimizer, **({"sparsity": 0.8} | options))


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def stored(*objects):
    """Through a file, as torch.save and weights_only loading do it."""
    file = io.BytesIO()
    torch.save([one.state_dict() for one in objects], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("net", [gpt, conv])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("model_first", [True, False])
def test_torch_save_and_back_in_any_order_goes_on_bit_for_bit(net, dtype, model_first):
    model, optimizer, handle = build(0, net, dtype=dtype)
    train(model, optimizer, range(4))
    states = stored(model, optimizer)
    train(model, optimizer, range(4, 8))
    other, its_optimizer, its_handle = build(1, net, dtype=dtype)  # other weights, so another mask
    assert not equal(model, other)
    pairs = list(zip((other, its_optimizer), states, strict=True))
    for one, state in pairs if model_first else reversed(pairs):
        one.load_state_dict(state)
    masks = its_handle.masks()
    assert all(torch.equal(mask, masks[name]) for name, mask in handle.masks().items())
    train(other, its_optimizer, range(4, 8))
    assert equal(model, other)
    mine, theirs = optimizer.state_dict(), its_optimizer.state_dict()
    for key, entry in mine["state"].items():
        assert all(torch.equal(value, theirs["state"][key][name]) for name, value in entry.items())


def test_the_mask_is_stored_once_in_one_bit_a_weight():
    _, optimizer, handle = build(sparsity=0.9)
    layers = optimizer.state_dict()["samo"]["layers"]
    bits = sum(layer["bits"].numel() for layer in layers if layer["bits"] is not None)
    assert bits == sum(-(-mask.numel() // 8) for mask in handle.masks().values())
    tensors = [value for layer in layers for value in layer.values() if isinstance(value, torch.Tensor)]
    assert {one.dtype for one in tensors} == {torch.uint8, torch.float32}


def live(folder, steps, kill_at=0, seed=0, *options):
    """Runs one life; returns its exit code and what it printed."""
    words = ["-m", "tests.memory.samo_life", folder, steps, kill_at, *options]
    done = run(words, env=os.environ | {"SEED": str(seed), "OMP_NUM_THREADS": "1"})
    return done.returncode, dict(line.split() for line in done.stdout.splitlines()), done.stderr


def test_killed_and_resumed_is_the_uninterrupted_run_bit_for_bit(tmp_path):
    """One kill comes before the early-bird ticket is drawn and one after it; the scaler skips steps."""
    options = ("float16", "early_bird")
    code, whole, errors = live(tmp_path / "whole", 20, 0, 0, *options)
    assert code == 0, errors
    for seed, kill_at, start in ((0, 6, 0), (1, 15, 4)):
        code, said, errors = live(tmp_path / "killed", 20, kill_at, seed, *options)
        assert (code, said["start"]) == (-signal.SIGKILL, str(start)), errors
    assert 8 <= int(said["drawn"]) < 12
    code, resumed, errors = live(tmp_path / "killed", 20, 0, 2, *options)
    assert (code, resumed["start"]) == (0, "12"), errors
    assert resumed["digest"] == whole["digest"]
    assert float(whole["sparsity"]) > 0.7


def test_a_lossy_checkpoint_gives_the_true_weights_back(tmp_path):
    """theta32 is kept exactly, so whatever the method made of theta16, the restored model is the true one."""
    model, optimizer, _ = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=100) as saving:
        train(model, optimizer, range(3))
        saving.save()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    other, its_optimizer, _ = build(1)
    dq.Checkpointer(tmp_path, other, its_optimizer).restore()
    assert all(torch.equal(one, other.state_dict()[name]) for name, one in before.items())


def test_loading_weights_into_the_model_alone_moves_theta32_along():
    model, optimizer, handle = build(dtype=torch.float32)
    other, _, _ = build(1, dtype=torch.float32)
    model.load_state_dict(other.state_dict())
    masks = handle.masks()
    for name, parameter in model.named_parameters():
        if name in masks:
            assert torch.equal(parameter, other.state_dict()[name].masked_fill(~masks[name], 0))
    loaded = {name: one.clone() for name, one in model.state_dict().items()}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, range(1))
    assert all(torch.equal(one, loaded[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("then", ["step", "save", "unwrap"])
def test_weights_that_are_written_into_the_model_stay(dtype, then):
    """A part's own `load_state_dict`, clipped weights: theta32 would undo them at the next step."""
    model, optimizer, handle = build(dtype=dtype)
    masks = handle.masks()
    with torch.no_grad():
        first, second, *_ = (dict(model.named_parameters())[name] for name in masks)
        first.clamp_(-0.01, 0.01)
        second.fill_(0.5)
    written = [one.detach().float().clone() for one in (first, second)]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    if then == "step":
        train(model, optimizer, range(1))
    elif then == "save":
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        handle.unwrap()
    for one, before, mask in zip((first, second), written, masks.values(), strict=False):
        assert torch.equal(one.float(), before.masked_fill(~mask, 0))


def test_a_parts_own_weights_are_loaded_and_the_others_keep_their_bits():
    model, optimizer, _ = build(net=conv)
    train(model, optimizer, range(2))

    def theta32():
        return {one["name"]: one["theta32"].clone() for one in optimizer.state_dict()["samo"]["layers"]}

    before = theta32()
    model.head.load_state_dict(
        {name: torch.full_like(one, 0.25) for name, one in model.head.state_dict().items()}
    )
    after = theta32()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "head.weight",
        "head.bias",
    }
    assert (after["head.weight"] == 0.25).all()
    assert (after["head.bias"] == 0.25).all()


def test_a_state_of_other_groups_is_refused_before_weights_or_masks_are_touched():
    _, optimizer, _ = build(1)
    model = gpt()
    groups = [{"params": [one]} for one in model.parameters()]
    handle = samo.wrap(model, torch.optim.AdamW(groups), sparsity=0.5)
    before, share = copy.deepcopy(model.state_dict()), handle.sparsity
    with pytest.raises(StateMismatchError, match=r"with groups of .* this one has .*optimizer was left"):
        handle.optimizer.load_state_dict(optimizer.state_dict())
    assert handle.sparsity == share
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_a_refusal_says_what_was_restored_before_it(tmp_path):
    """A run that was saved without SAMO: its weights are in the model when the optimizer is asked."""
    dense = gpt()
    with dq.Checkpointer(tmp_path, dense, OPTIMIZERS["adamw"](dense.parameters()), **EXACT) as saving:
        saving.save()
    model = gpt(1)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    with pytest.raises(
        StateMismatchError, match="weights that were not loaded into the model before"
    ) as told:
        dq.Checkpointer(tmp_path, model, optimizer).restore()
    assert "othing was restored" not in str(told.value)
    assert not optimizer.state


def test_states_of_other_runs_are_refused_and_nothing_is_changed(tmp_path):
    model, optimizer, _ = build()
    train(model, optimizer, range(2))
    dense = gpt()
    dense_optimizer = OPTIMIZERS["adamw"](dense.parameters())
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["samo"]["layers"][3]["theta32"]))
    good = optimizer.state_dict()

    def layer(at, **changed):
        layers = [dict(one) for one in good["samo"]["layers"]]
        layers[at] |= changed
        return {**good, "samo": {**good["samo"], "layers": layers}}

    pruned = next(at for at, one in enumerate(good["samo"]["layers"]) if one["bits"] is not None)
    for bad, message in (
        (dense_optimizer.state_dict(), "holds no mask"),
        (build(0, conv)[1].state_dict(), "not trained here"),
        (build(dtype=torch.float32)[1].state_dict(), "was float32"),
        (layer(pruned, bits=torch.zeros(3, dtype=torch.uint8)), "is not uint8"),
        (layer(pruned, theta32=torch.zeros(3)), "is not float32"),
        ({**good, "samo": {**good["samo"], "layers": good["samo"]["layers"][1:]}}, "holds no theta32"),
    ):
        with pytest.raises(StateMismatchError, match=message) as caught:
            optimizer.load_state_dict(bad)
        assert "\n" not in str(caught.value)
    assert all(torch.equal(one, before[0][name]) for name, one in model.state_dict().items())
    assert torch.equal(optimizer.state_dict()["samo"]["layers"][3]["theta32"], before[1])
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as saving:
        saving.save()
    dense.half()
    with pytest.raises(StateMismatchError, match="group 0"):  # vectors never become the moments of matrices
        dq.Checkpointer(tmp_path, dense, dense_optimizer).restore()
