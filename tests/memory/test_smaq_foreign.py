"""What operators that are none of torch's own save is for them to read: it stays as it was."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS

ROWS, WIDTH = 2048, 16


@torch.library.custom_op("dynaquant_tests::rows_at", mutates_args=())
def rows_at(maps: list[torch.Tensor], places: torch.Tensor) -> torch.Tensor:
    """Rows of the first map; their numbers are floats, as those of images in torchvision's boxes."""
    return maps[0][places.long()].clone()


@rows_at.register_fake
def _(maps, places):
    return maps[0].new_empty(len(places), maps[0].shape[1])


def _keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.shape = inputs[0][0].shape


def _spread(context, gradient):
    (places,) = context.saved_tensors
    assert torch.equal(places, places.round()), "backward of an operator in C++ would write anywhere"
    return [gradient.new_zeros(context.shape).index_add_(0, places.long(), gradient)], None


rows_at.register_autograd(_spread, setup_context=_keep)


class RowsAt(torch.autograd.Function):
    """The same, as extensions have it that bring a kernel and no operator."""

    @staticmethod
    def forward(context, maps, places):
        context.save_for_backward(places)
        context.shape = maps.shape
        return maps[places.long()]

    @staticmethod
    def backward(context, gradient):
        return _spread(context, gradient)[0][0], None


CALLS = {
    "operator": lambda maps, places: rows_at([maps], places),
    "packet": lambda maps, places: torch.ops.dynaquant_tests.rows_at([maps], places),
    "function": RowsAt.apply,
}


class Picks(nn.Module):
    """A layer whose rows are picked, and one behind it."""

    def __init__(self, pick):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.pick, self.last = nn.Linear(64, WIDTH), pick, nn.Linear(WIDTH, 4)

    def forward(self, inputs, places):
        return self.last(self.pick(self.first(inputs), places * 1.0).tanh())  # places that are no batch


def gradient(model, *batch, coded, compiled=False):
    handle = smaq.apply(model, **ONLY_MAPS) if coded else None
    run = torch.compile(model, backend="aot_eager") if compiled else model
    run(*batch).square().mean().backward()
    if handle:
        assert handle.report()["saved"]["tensors"] >= 1, "what torch's own save is packed"
        handle.remove()
    return [one.grad for one in model.parameters()]


class Sine(torch.autograd.Function):
    """So written that `torch.vmap` makes one of its own of it, of which torch says that it is torch's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(maps):
        return maps.sin()

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(inputs[0])

    @staticmethod
    def backward(context, gradient):
        return gradient * context.saved_tensors[0].cos()


def test_a_function_of_others_under_vmap_reads_what_it_saved():
    def grown(coded):
        torch.manual_seed(0)
        first = nn.Linear(64, WIDTH)
        model = nn.Sequential(first, nn.Tanh())
        model[1].forward = torch.vmap(Sine.apply)
        with smaq.apply(model, **ONLY_MAPS) if coded else nullcontext():
            model(inputs).square().sum().backward()
        return first.weight.grad

    inputs = torch.randn(ROWS, 64)
    assert torch.equal(grown(False), grown(True))


@pytest.mark.filterwarnings("default:The .grad attribute")  # Dynamo asks maps between two graphs for it
@pytest.mark.parametrize(("call", "compiled"), [*((name, False) for name in CALLS), ("operator", True)])
def test_an_operator_of_others_reads_what_it_saved(call, compiled):
    torch._dynamo.reset()
    inputs, places = torch.randn(ROWS, 64), torch.arange(ROWS).flip(0).float()
    exact, coded = (
        gradient(Picks(CALLS[call]), inputs, places, coded=coded, compiled=compiled)
        for coded in (False, True)
    )
    for one, other in zip(exact, coded, strict=True):
        assert (other - one).norm() < 0.2 * one.norm()


def test_a_detectors_boxes_stay_where_they_are():
    """Torchvision reads image numbers out of them; some pointed to images that there are not."""
    operators = pytest.importorskip("torchvision.ops")

    class Detector(nn.Module):
        def __init__(self, pool):
            super().__init__()
            torch.manual_seed(0)
            self.maps, self.pool, self.head = nn.Conv2d(3, 8, 3, padding=1), pool, nn.Linear(8 * 9, 4)

        def forward(self, images, corners, sizes):
            boxes = [torch.cat([one, one + size], 1) for one, size in zip(corners, sizes, strict=True)]
            return self.head(self.pool(self.maps(images), boxes, 3).flatten(1))

    batch = torch.randn(2, 3, 32, 32), torch.rand(2, 256, 2) * 16, torch.rand(2, 256, 2) * 8 + 6
    for pool in (operators.roi_align, operators.roi_pool):
        exact, coded = (gradient(Detector(pool), *batch, coded=coded) for coded in (False, True))
        assert torch.equal(exact[0], coded[0]), "nothing else that its way back needs is packed"


def test_torch_s_compiler_is_not_imported_for_it() -> None:
    """Every command line would wait for it a second; and torch 2.7 leaves a temporary folder behind."""
    code = "import sys; import dynaquant_core.memory.smaq; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


AS_IN_TORCH_2_14 = """
import torch
torch.autograd.Function.apply = torch._C._FunctionBase.__dict__["apply"]
import dynaquant_core.cli.app, dynaquant_core.experiments.kinds.system, dynaquant_core.training
from importlib.util import find_spec
if find_spec("transformers") and find_spec("accelerate"):
    import dynaquant_transformers
    dynaquant_transformers.DynaQuantCallback
    assert "SmaQCallback" in dynaquant_transformers.__all__
import sys
print("smaq" if "dynaquant_core.memory.smaq" in sys.modules else "none of it")
from dynaquant_core.memory import smaq
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with smaq.apply(model, optimizer, feature_maps="inline") as handle:
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
print(sorted(handle.report()))
try:
    smaq.apply(model, optimizer)
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_where_torch_shows_no_function_smaq_alone_refuses_and_checkpoints_work():
    """Every command died on import, and the Trainer's callback, which have nothing to do with it."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AS_IN_TORCH_2_14], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    told = run.stdout.splitlines()[-3:]
    assert told[0] == "none of it"
    assert told[1] == "['gradient', 'gradient map', 'map', 'weight']"
    assert told[2].startswith("DependencyError SmaQ: torch")
    assert "expected torch below 2.14" in told[2]
