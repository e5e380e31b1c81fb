"""What must come back bit for bit although it looks like a weight: buffers and masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.utils import prune

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore


class Masked(torch.nn.Module):
    """A layer with what must not be rounded: a causal mask, a table of positions, a pruned neighbour."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(64, 64)
        self.pruned = prune.random_unstructured(torch.nn.Linear(64, 64), "weight", 0.5)
        self.register_buffer("bias", torch.ones(1, 64, 64).tril())
        self.register_buffer("positions", torch.randn(64, 64).cumsum(0))
        self.register_buffer("ids", torch.arange(64))


@pytest.mark.parametrize("method", ["lattice", "dynaquant", "qd", "excp"])
@pytest.mark.parametrize("several", [False, True])
def test_buffers_of_a_model_come_back_bit_for_bit(tmp_path: Path, method: str, several: bool) -> None:
    """A mask whose zeros are not zeros leaks, and no loss says so."""
    model = Masked()
    models = {"a": model} if several else model
    store = CheckpointStore(tmp_path, method=method)
    for step in (1, 2):
        with torch.no_grad():
            model.fc.weight += 0.01 * torch.randn(64, 64)
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state = {"model": {"a": tensors} if several else tensors, "ema": {"n": 3, "shadow": dict(tensors)}}
        store.save(step, state, model=models)
    loaded = CheckpointStore(tmp_path).load(2)
    for found in (loaded["model"]["a"] if several else loaded["model"], loaded["ema"]["shadow"]):
        for name, tensor in model.named_buffers():
            assert torch.equal(found[name], tensor), name
    assert not torch.equal(found["fc.weight"], model.fc.weight)  # so the test can fail


@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masks_need_no_model_to_stay_exact(tmp_path: Path, method: str, dtype: torch.dtype) -> None:
    mask = torch.ones(64, 64, dtype=dtype).tril()
    state = {"w": torch.randn(64, 64), "mask": mask, "far": torch.where(mask > 0, 0.0, -1e9)}
    dq.save_file(state, tmp_path / "x.dq", method=method)
    loaded = dq.load_file(tmp_path / "x.dq")
    assert all(torch.equal(loaded[name], state[name]) for name in ("mask", "far"))


class Extra(torch.nn.Module):
    """A layer whose extra state is a dictionary, with a table in it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(64, 64)
        self.history = {"table": torch.randn(64, 64), "deeper": [torch.randn(64, 64)]}

    def get_extra_state(self) -> dict[str, object]:
        return self.history

    def set_extra_state(self, state: dict[str, object]) -> None:
        self.history = state


def test_extra_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Extra())
    table, (deeper,) = (model[0].history[key] for key in ("table", "deeper"))
    kept = table.clone(), deeper.clone()
    with dq.Checkpointer(tmp_path, model) as checkpoints:
        checkpoints.save()
    table.zero_()
    assert dq.Checkpointer(tmp_path, model).restore() == 0
    assert torch.equal(model[0].history["table"], kept[0])
    assert torch.equal(model[0].history["deeper"][0], kept[1])


def test_buffers_below_activation_checkpointing_come_back_bit_for_bit(tmp_path: Path) -> None:
    wrappers = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    model = torch.nn.Sequential(wrappers.checkpoint_wrapper(Masked()))
    before = [buffer.clone() for buffer in model.buffers()]
    with dq.Checkpointer(tmp_path, model) as checkpoints:
        checkpoints.save()
    for buffer in model.buffers():
        buffer.zero_()
    dq.Checkpointer(tmp_path, model).restore()
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), before, strict=True))


@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_scales_of_quantised_weights_need_no_model_to_stay_exact(tmp_path: Path, method: str) -> None:
    """A weight that was quantised before is its codes times these: their noise is the weight's."""
    weights = 0.02 * torch.randn(4096, 1024)
    blocks = weights.view(32, 128, 8, 128)
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).reshape(4096, 1024).to(torch.float8_e4m3fn)
    groups = weights.view(4096, 8, 128)
    scales = (groups.abs().amax(2) / 127).half()
    whole = torch.round(groups / scales[..., None].float()).to(torch.int8)
    state = {
        "mlp.weight": codes,
        "mlp.weight_scale_inv": scale,
        "fc": {"qweight": whole, "scales": scales, "zeros": torch.rand(4096, 8)},
        "out.weight": whole.view(torch.uint8),
        "out.weight.absmax": scales.float(),
        "added": {
            "codes": torch.randint(256, (64, 64, 2), dtype=torch.int16),
            "codebooks": torch.randn(2, 256, 1, 8),
        },
        "free.weight": torch.randn(64, 64),
        "free.scale": torch.randn(64, 64),
    }
    dq.save_file(state, tmp_path / "x.dq", method=method)
    loaded = dq.load_file(tmp_path / "x.dq")
    for name in ("mlp.weight_scale_inv", "out.weight.absmax"):
        assert torch.equal(loaded[name], state[name]), name
    for layer in ("fc", "added"):
        assert all(torch.equal(loaded[layer][name], state[layer][name]) for name in state[layer])
    assert not any(torch.equal(loaded[name], state[name]) for name in ("free.weight", "free.scale"))


@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_running_statistics_of_any_shape_need_no_model_to_stay_exact(tmp_path: Path, method: str) -> None:
    """A variance that noise has made negative is a NaN."""
    variance = torch.exp(1.5 * torch.randn(1, 512, 1, 1)) * 1e-2
    norm = {"running_var": variance, "running_mean": torch.randn(1, 512, 1, 1)}
    state = {"norm": norm, **{f"flat.{name}": value.clone() for name, value in norm.items()}}
    state["fc.weight"] = torch.randn(64, 64)
    dq.save_file(state, tmp_path / "x.dq", method=method)
    loaded = dq.load_file(tmp_path / "x.dq")
    for name, value in norm.items():
        assert torch.equal(loaded["norm"][name], value)
        assert torch.equal(loaded[f"flat.{name}"], value)
    assert not torch.equal(loaded["fc.weight"], state["fc.weight"])


class PartlyTied(torch.nn.Module):
    """A head that is a slice of the embedding's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(256, 32)
        self.middle = torch.nn.Linear(32, 32)
        self.head = torch.nn.Linear(32, 128, bias=False)
        self.head.weight = torch.nn.Parameter(self.words.weight.data[:128])

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(words) + torch.tanh(self.middle(self.words(words))))


@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_of_weights_that_share_memory_what_was_measured_is_stored(tmp_path: Path, method: str) -> None:
    """A candidate of the one was written over the other, and the other then coded from it."""
    torch.manual_seed(0)
    model, words = PartlyTied(), torch.randint(0, 256, (512,))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def quality(net: PartlyTied) -> float:
        return torch.nn.functional.cross_entropy(net(words), (words * 7 + 3) % 128).item()

    with dq.Checkpointer(
        tmp_path, model, optimizer, every=20, evaluate=quality, threshold=0.05, method=method
    ) as saves:
        for _ in range(60):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(words), (words * 7 + 3) % 128).backward()
            optimizer.step()
            saves.step()
    store = CheckpointStore(tmp_path)
    for step in (20, 40, 60):
        stored = PartlyTied()
        stored.load_state_dict(store.load(step)["model"])
        assert quality(stored) == pytest.approx(store.info(step).quality["search"], rel=1e-6)
    assert torch.equal(store.load()["model"]["words.weight"], model.words.weight)
    assert not torch.equal(store.load()["model"]["middle.weight"], model.middle.weight)
