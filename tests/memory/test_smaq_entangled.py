"""Operations whose backward sets what they saved against each other have it as it was."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS

ROWS, WIDTH = 512, 64
GROUPS = torch.arange(ROWS) // 8
BANNED = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)) < 0.1
BANNED[:, 0] = False
TARGETS = (torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(4)) < 0.5).float()


class Through(nn.Module):
    """A layer, an operation, a layer."""

    def __init__(self, operation):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.operation, self.last = nn.Linear(32, WIDTH), operation, nn.LazyLinear(4)

    def forward(self, inputs):
        return self.last(self.operation(self.first(inputs)).relu())


def gradient(model, loss, *, coded, run=None):
    """Of all parameters, by a loss outside of the model; the lazy layer is made by a first call."""
    handle = smaq.apply(model, **ONLY_MAPS) if coded else None
    model.zero_grad()
    loss(model if run is None else run).backward()
    if handle:
        handle.remove()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def error(model, loss):
    exact, coded = (gradient(model, loss, coded=coded) for coded in (False, True))
    assert coded.isfinite().all()
    return float((coded - exact).norm() / exact.norm())


def crf(scores):
    """The forward algorithm of a linear chain whose last state is not reached from the first."""
    transitions = torch.zeros(4, 4)
    transitions[0, 3] = -1e4
    sequences, found = scores.view(-1, 16, 4), scores.view(-1, 16, 4)[:, 0]
    for step in range(1, 16):
        found = torch.logsumexp(found[:, :, None] + transitions + sequences[:, step, None], 1)
    return found.logsumexp(-1, keepdim=True)


def tailed(maps):
    """The first column far out, so that the levels for the others are far apart."""
    return torch.where(torch.arange(maps.shape[1]) == 0, 50 * maps, maps)


OPERATIONS = {
    "amax": lambda maps: maps.view(-1, 8, WIDTH).amax(1),
    "amin by keyword": lambda maps: torch.amin(input=maps.view(-1, 8, WIDTH), dim=1),
    "softmax by hand": lambda maps: (maps - maps.amax(-1, keepdim=True)).exp(),
    "by the largest": lambda maps: maps / maps.abs().max(),
    "by the median": lambda maps: maps / maps.abs().median(),
    "by the range": lambda maps: (maps - maps.aminmax().min) / (maps.aminmax().max - maps.aminmax().min),
    "largest norm": lambda maps: functional.normalize(maps, p=math.inf, dim=-1),
    "largest of a vector": lambda maps: maps / torch.linalg.vector_norm(maps, math.inf, -1, keepdim=True),
    "most of neighbours": lambda maps: maps.new_zeros(ROWS // 8, WIDTH).scatter_reduce(
        0, GROUPS[:, None].expand_as(maps), maps, "amax", include_self=False
    ),
    "product": lambda maps: maps.view(-1, 8, WIDTH).prod(1),
    "masked sum of exponents": lambda maps: maps.masked_fill(BANNED, -1e4).logsumexp(-1, keepdim=True),
    "chain": crf,
    "distances": lambda maps: torch.cdist(maps, maps[:16], p=math.inf),
    "distances of pairs": lambda maps: functional.pairwise_distance(
        maps.view(-1, 8), maps.roll(1, 0).view(-1, 8), p=math.inf
    ).view(-1, 8),
    "eigenvectors": lambda maps: torch.linalg.eigh(maps.view(-1, 4, 4) @ maps.view(-1, 4, 4).mT)[1].reshape(
        -1, WIDTH
    ),
    "singular vectors": lambda maps: torch.linalg.svd(maps.view(-1, 4, 4)).U.reshape(-1, WIDTH),
    "arc sine": lambda maps: torch.asin(torch.tanh(3 * maps) * 0.999),
    "error function": lambda maps: torch.erfinv(torch.tanh(3 * maps) * 0.999),
    "signed square": lambda maps: torch.copysign(maps * maps, maps),
    "sign of others": lambda maps: maps.abs().copysign(maps.roll(1, 0)),
    "lengths": lambda maps: torch.hypot(tailed(maps), tailed(maps).roll(1, 0))[:, 1:],
    "tail of an error": lambda maps: torch.special.erfcx(20 * maps.abs() + 1),
    "logarithm of a share": lambda maps: torch.special.log_ndtr(tailed(5 * maps)),
    "Bessel, scaled": lambda maps: torch.special.i0e(20 * maps),
    "Bessel of order one": lambda maps: torch.special.i1(tailed(maps / 5))[:, 1:],
    "Bessel of order one, scaled": lambda maps: torch.special.i1e(20 * maps.abs()),
    "pool of squares": lambda maps: functional.lp_pool1d(tailed(maps).abs() + 0.1, 2.0, 2)[:, 1:],
    "cross-entropy of bits": lambda maps: functional.binary_cross_entropy(
        torch.sigmoid(4 * maps), TARGETS, reduction="none"
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_come_through(name):
    """Packed each for itself, most of these gave NaN; a share through the maximum was lost without a word."""
    if (
        name == "by the range"
        and "NotImplemented" in torch.ones(2, requires_grad=True).aminmax().min.grad_fn.name()
    ):
        pytest.skip("this torch has no derivative of aminmax")
    model, inputs = Through(OPERATIONS[name]), torch.randn(ROWS, 32)
    model(inputs)
    assert error(model, lambda run: run(inputs).square().mean()) < 0.2


def test_the_parts_of_a_warped_image_reach_what_says_where_it_is_warped_to():
    class Warped(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.maps, self.where = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(3, 6)

        def forward(self, images):
            bend = torch.eye(2, 3) + 0.05 * self.where(images.mean((2, 3))).view(-1, 2, 3)
            grid = functional.affine_grid(bend, [len(images), 4, 32, 32], align_corners=False)
            return functional.grid_sample(self.maps(images), grid, align_corners=False)

    model, images, weights = Warped(), torch.randn(8, 3, 32, 32), torch.randn(8, 4, 32, 32)
    assert error(model, lambda run: (run(images) * weights).mean()) < 0.2


def test_an_autoencoder_learns_bits_with_its_loss_inside():
    """A probability of .99 came back as more than 1, and gradients of a billion with it."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256), nn.Sigmoid())

        def forward(self, inputs):
            return functional.binary_cross_entropy(self.layers(inputs), inputs)

    model, patterns = Encoder(), (torch.rand(16, 256) < 0.5).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with smaq.apply(model, **ONLY_MAPS):
        for _ in range(100):
            optimizer.zero_grad()
            loss = model(patterns[torch.randint(16, (64,))])
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.1


class Language(nn.Module):
    """Its loss inside, as those of Hugging Face; sure of most of its predictions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(512, WIDTH), nn.Linear(WIDTH, 512, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embedding.weight)

    def forward(self, tokens, labels):
        return functional.cross_entropy(self.head(self.embedding(tokens)), labels)


class ByHand(nn.Module):
    """Attention written out, whose backward a compiler makes of scores in place of probabilities."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.last = nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, inputs, _):
        queries = self.queries(inputs)
        return self.last((2 * queries @ queries.mT).softmax(-1) @ queries).square().mean()


@pytest.mark.filterwarnings("default:The .grad attribute")  # Dynamo asks hooked maps for it
@pytest.mark.filterwarnings("default:`torch.jit.script_method` is deprecated")  # of what Inductor imports
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs the C++ compiler that Inductor calls")
@pytest.mark.parametrize("build", [Language, ByHand])
def test_a_compiler_changes_nothing_of_what_is_packed(build):
    """Inductor saves logits for their log-probabilities: the gradient was three times too long."""
    tokens = torch.randint(512, (256,))
    labels = torch.where(torch.arange(256) < 16, (tokens + 1) % 512, tokens)
    batch = (tokens, labels) if build is Language else (torch.randn(8, 48, 32), None)

    def grown(*, compiled, coded):
        torch._dynamo.reset()
        model = build()
        run = torch.compile(model, backend="inductor") if compiled else None
        return gradient(model, lambda run: run(*batch), coded=coded, run=run)

    exact, plain, compiled = (
        grown(compiled=compiled, coded=coded) for compiled, coded in ((0, 0), (0, 1), (1, 1))
    )
    off, bent = ((one - exact).norm() / exact.norm() for one in (plain, compiled))
    assert float(bent) < 1.2 * float(off) + 1e-3
