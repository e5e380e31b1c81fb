"""SmaQ and SAMO on a device: the bits of the CPU where they are promised, and memory that really falls."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynaquant_core import device_jit
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.memory import samo, smaq
from dynaquant_core.memory.smaq import cpu_path, torch_path
from dynaquant_core.memory.smaq.chunks import CHUNK, chunk_count
from dynaquant_core.memory.smaq.levels import Levels
from dynaquant_core.memory.smaq.statistics import Statistics
from tests.device.places import CUDA, EVERYWHERE, NEEDS_CUDA, everywhere
from tests.memory.nets import ONLY_MAPS
from tests.memory.samo_nets import OPTIMIZERS, DenseMasked, conv, equal, gpt, loss_of, twin
from tests.training.models import bits


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


FORMATS = [
    "smaq",
    {"name": "smaq", "inlier_bits": 4, "outlier_bits": 5},
    "s2fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "bf16",
    "fp16",
]


@EVERYWHERE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_formats_give_what_they_give_on_the_cpu(form, dtype, device):
    values = torch.randn(150_001, generator=stream()).to(dtype)
    coder = smaq.make_format(form)
    here, there = (coder.encode(one, stream(1)) for one in (values, values.to(device)))
    back = there.decode()
    assert back.device.type == device
    assert back.dtype == dtype
    # A device sums in another order: the last bit of a deviation, and so of every value, may be another,
    # and a draw beside the border of two levels takes the other one.
    away = (back.cpu().float() - here.decode().float()).abs()
    assert (away > 1e-5 * (1 + values.float().abs())).float().mean() < 1e-3
    assert away.max() < 0.5
    assert there.nbytes == pytest.approx(here.nbytes, rel=1e-3)


@NEEDS_CUDA
@pytest.mark.parametrize("levels", [Levels(), Levels(2, 3), Levels(9, 9, box=0.5, limit=8.0)])
@pytest.mark.parametrize("size", [7, CHUNK + 1, 5_000_003])
def test_kernels_of_the_device_and_operations_of_torch_have_the_bits_of_the_cpu(levels, size):
    from dynaquant_core.memory.smaq.device import path

    statistics, key, whole = Statistics(0.25, 1.0), 2**63 - 5, slice(0, chunk_count(size))
    tables = levels.tables(0.25, 1.0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        values = (torch.randn(size, generator=stream()) + 0.25).to(dtype)
        here = cpu_path.encode(values, levels, statistics, key)
        wanted = cpu_path.read(*here, levels, tables, size, whole, dtype)
        for side in (path, torch_path):
            there = side.encode(values.cuda(), levels, statistics, key)
            assert all(torch.equal(mine, theirs.cpu()) for mine, theirs in zip(here, there, strict=True))
            found = side.read(*there, levels, tables, size, whole, dtype)
            settled, outliers = side.settle(values.cuda(), levels, statistics, key, tables, dtype)
            assert torch.equal(found.cpu(), wanted)
            assert torch.equal(settled.cpu(), wanted)
            assert outliers == int(here[3].sum())


@NEEDS_CUDA
def test_what_kernels_draft_is_used():
    """The device divides and takes roots as the host does, so nothing is flagged a second time."""
    from dynaquant_core.memory.smaq.device import path
    from dynaquant_core.memory.smaq.device.look import DeviceLook

    for seed in range(20):
        values = torch.randn(100_000 + seed, generator=stream(seed)).mul_(10.0 ** (seed - 10)).cuda()
        look = DeviceLook.of(values, Levels())
        assert look.draft.about == path.numbers(look.statistics("exact", 0, stream()), None)[:2]


def gradient_of(model, inputs, labels):
    model.zero_grad()
    functional.cross_entropy(model(inputs), labels).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


@EVERYWHERE
def test_gradients_of_a_conv_net_stay_near_the_exact_ones(device):
    torch.manual_seed(0)
    model = ResNet(widths=(8, 16, 32), depths=1).to(device)
    inputs, labels = torch.randn(64, 3, 32, 32).to(device), torch.randint(10, (64,)).to(device)
    exact = gradient_of(model, inputs, labels)
    with smaq.apply(model, **ONLY_MAPS) as handle:
        found = gradient_of(model, inputs, labels)
    assert (found - exact).norm() < 0.25 * exact.norm()
    assert handle.report()["saved"]["benefit"] > 4


@EVERYWHERE
def test_blank_images_leave_the_other_gradients_alone(device):
    """Statistics of norms stay exact, whatever kernel the device normalises with."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3))
    model.append(nn.BatchNorm2d(16)).extend([nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)])
    inputs = torch.randn(32, 3, 16, 16)
    inputs[:4] = 0
    model(inputs)
    model, inputs, labels = model.to(device), inputs.to(device), torch.randint(10, (32,)).to(device)
    exact = gradient_of(model, inputs, labels)
    with smaq.apply(model, **ONLY_MAPS):
        found = gradient_of(model, inputs, labels)
    assert (found - exact).norm() < 0.2 * exact.norm()


class Attention(nn.Module):
    """Heads whose scores are far apart, between packed maps."""

    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.inner = nn.Linear(width, width), nn.Linear(width, 3 * width)
        self.outer, self.last = nn.Linear(width, width), nn.Linear(width, 8)
        with torch.no_grad():
            self.inner.weight[: 2 * width].mul_(8)

    def forward(self, x):
        heads = self.inner(self.first(x).tanh()).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.last(self.outer(mixed.transpose(1, 2).flatten(2)).tanh()).mean(1)


KERNELS = {
    "flash": (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "efficient half": (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16),
    "plain": (SDPBackend.MATH, torch.float32),
    "any": (None, torch.float32),
}


@pytest.mark.parametrize(
    ("kernel", "device"),
    [*(pytest.param(name, "cuda", marks=NEEDS_CUDA) for name in KERNELS), ("any", "cpu")],
)
def test_attention_of_every_kernel_has_gradients_near_the_exact_ones(kernel, device):
    backend, dtype = KERNELS[kernel]
    torch.manual_seed(0)
    model = Attention().to(device)
    inputs, labels = torch.randn(8, 128, 256).to(device), torch.randint(8, (8,)).to(device)

    def gradient():
        chosen = nullcontext() if backend is None else sdpa_kernel(backend)
        with chosen, torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return gradient_of(model, inputs, labels)

    exact = gradient()
    with smaq.apply(model, **ONLY_MAPS):
        found = gradient()
    assert found.isfinite().all()
    assert (found - exact).norm() < 0.5 * exact.norm()


@NEEDS_CUDA
@pytest.mark.parametrize("kind", ["conv", "text"])
def test_device_memory_of_a_step_falls(kind):
    torch.manual_seed(0)
    if kind == "conv":
        model, labels = ResNet(widths=(32, 64, 128), depths=2).cuda(), torch.randint(10, (256,)).cuda()
        inputs = torch.randn(256, 3, 32, 32).cuda()
    else:
        model, labels = CharGPT(65, layers=4, width=256, heads=4, context=256).cuda(), None
        inputs = torch.randint(65, (32, 256)).cuda()

    def peak():
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = model(inputs)
        held = torch.cuda.memory_allocated() - before
        loss = out.square().mean() if labels is None else functional.cross_entropy(out, labels)
        loss.backward()
        model.zero_grad()
        return held, torch.cuda.max_memory_allocated() - before

    peak()
    held, highest = peak()
    with smaq.apply(model, **ONLY_MAPS):
        peak()
        packed, packed_highest = peak()
    assert packed < held / (3 if kind == "conv" else 1.5)
    assert packed_highest < highest


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("feature_maps", ["saved", "inline"])
def test_a_training_with_everything_coded_learns(feature_maps, device):
    torch.manual_seed(0)
    model = CharGPT(31, layers=2, width=64, heads=2, context=16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=device == "cuda")
    losses = []
    with smaq.apply(model, optimizer, feature_maps=feature_maps) as handle:
        for step in range(60):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        state = handle.state_dict()
        handle.load_state_dict(state)
    assert sum(losses[-10:]) < 8.5 * losses[0]
    assert all(one.isfinite().all() for one in model.parameters())


# -- SAMO ------------------------------------------------------------------------------------------


@EVERYWHERE
@pytest.mark.parametrize("name", ["adamw", "sgd", "foreach adamw"])
def test_samo_is_masked_dense_training_bit_for_bit(name, device):
    model = gpt().to(device)
    other = twin(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.8, dtype=torch.float32)
    dense = DenseMasked(other, OPTIMIZERS[name], handle.masks())
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            dense.optimizer.zero_grad()
            loss_of(other, step).backward()
            dense.step()
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert equal(model, other)
    assert next(model.parameters()).device.type == device


@pytest.mark.parametrize(
    ("device", "build", "fused"), everywhere([(gpt, True)], list(product([gpt, conv], [False, True])))
)
def test_samo_in_half_precision_with_loss_scaling(build, fused, device):
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=fused)
    handle = samo.wrap(model, optimizer, sparsity=0.8, loss_scale=256.0)
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(model, step % 2)
        handle.scale(loss).backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    before = bits(model.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    assert bits(model.state_dict()) == before
    report = samo.memory_report(handle)
    assert report.measured == pytest.approx(report.formula, rel=0.1), "of small nets"


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_samo_has_the_same_bits_with_kernels_and_without(monkeypatch, dtype):
    def trained():
        model = gpt().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        handle = samo.wrap(model, optimizer, sparsity=0.8, dtype=dtype, loss_scale=256.0)
        for step in range(6):
            optimizer.zero_grad()
            handle.scale(loss_of(model, step)).backward()
            optimizer.step()
        return bits(model.state_dict())

    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        with_kernels = trained()
        monkeypatch.setattr(device_jit, "compiles", lambda device: False)
        assert trained() == with_kernels
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize("device", [CUDA])
def test_samo_frees_device_memory(device):
    def held(sparsity):
        gc.collect()
        before = torch.cuda.memory_allocated()
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16))).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        keep = [model, optimizer]
        if sparsity is not None:
            keep.append(samo.wrap(model, optimizer, sparsity=sparsity, dtype=torch.float16))
        x = torch.randn(4, 1024, device=device, dtype=next(model.parameters()).dtype)
        model(x).float().square().mean().backward()
        optimizer.step()
        gc.collect()
        return torch.cuda.memory_allocated() - before

    dense, pruned = held(None), held(0.9)
    parameters = 16 * 1024 * 1025
    assert dense >= 16 * parameters
    # theta16 2, and at a tenth of the places: index 4, theta32 4, grad16 2, moments 8 (grad32 comes and goes)
    assert pruned < 5.0 * parameters
