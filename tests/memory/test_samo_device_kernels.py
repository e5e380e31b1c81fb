"""SAMO's kernels for a device and what drives them: the bits of torch's own operations.

Without a device Triton's interpreter runs them on the processor's memory.
"""

import importlib
from itertools import product

import pytest
import torch
from torch import nn

from dynaquant_core import device_jit
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo import expansion
from tests.memory.samo_nets import OPTIMIZERS, conv, gpt, loss_of
from tests.memory.storages import Storages
from tests.triton_here import require_interpreter

KERNELS = "dynaquant_core.memory.samo.device_kernels"
HALVES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(scope="module")
def interpreted():
    """The kernels' module."""
    require_interpreter()
    return importlib.import_module(KERNELS)


@pytest.fixture
def compiling(interpreted, monkeypatch):
    """Every device is said to have kernels."""
    monkeypatch.setattr(device_jit, "compiles", lambda device: True)
    return interpreted


def awkward(count, seed=0):
    """Values of all sizes: halves of which are subnormal, overflow, or lie in the middle of two."""
    stream = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=stream) * 10.0 ** torch.randint(-12, 7, (count,), generator=stream)
    special = torch.tensor(
        [0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e9, 3.4e38, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 1e-45,
         float("inf"), -float("inf"), float("nan"),
         1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8]
    )  # fmt: skip
    values[: special.numel()] = special[:count]
    return values


def same_bits(one, other):
    """Equal words, but for what a NaN carries along."""
    word = {2: torch.int16, 4: torch.int32}[one.element_size()]
    numbers = ~one.isnan()
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one[numbers].view(word), other[numbers].view(word)
    )


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # the interpreter's, by NumPy
@pytest.mark.parametrize("dtype", HALVES)
def test_every_layer_gets_what_torch_gives_it(interpreted, dtype):
    """Layers of no weight, of one, and of sizes about the border of a block, in one launch."""
    size = 64
    counts = [0, 1, 63, 64, 65, 128, 0, 129, 200]
    flat = awkward(sum(counts) + 8 * len(counts))
    layers, blocks, targets, expected, held, offset = [], [], [], [], [], 3
    for number, kept in enumerate(counts):
        index = torch.randperm(kept + 50, generator=torch.Generator().manual_seed(kept))[:kept].sort().values
        target = torch.full((kept + 50,), 9.0, dtype=dtype)
        expected.append(target.clone().index_copy_(0, index, flat[offset : offset + kept].to(dtype)))
        held.append(index.int())
        targets.append(target)
        layers.append([target.data_ptr(), held[-1].data_ptr(), offset, kept])
        blocks += [[number, run] for run in range(-(-kept // size))]
        offset += kept + 5
    table = torch.tensor(layers, dtype=torch.int64), torch.tensor(blocks, dtype=torch.int32)
    interpreted.scatter(flat, *table, dtype, size)
    assert all(same_bits(*pair) for pair in zip(targets, expected, strict=True))
    interpreted.scatter(flat, table[0], table[1][:0], dtype, size)


@pytest.mark.parametrize("inverse", [1.0, 2.0**-12, 1 / 3])
@pytest.mark.parametrize("size", [16, 64])
def test_every_gradient_is_what_torch_makes_of_it(interpreted, size, inverse):
    """Of all dtypes, in one launch: a part or all of it, the first or one more, of sizes about a block's."""
    rows, made, expected, programs = [], [], [], 0
    for seed, (kept, element, whole, adds) in enumerate(
        product([0, 1, size - 1, size, size + 1, 3 * size], range(3), [False, True], [False, True])
    ):
        dense = awkward(kept if whole else kept + 50, seed).to(HALVES[element])
        index = torch.randperm(dense.numel(), generator=torch.Generator().manual_seed(seed))[:kept]
        index, out = index.sort().values.int(), awkward(kept, 100 + seed)
        values = (dense if whole else dense[index]).float()
        if adds and inverse != 1 / 3:  # a processor may round in between; the kernel, on a device, does not
            expected.append(out.clone().add_(values, alpha=inverse))
        else:
            adds = False
            expected.append(values * inverse)
        made.append((dense, index, out))
        rows.append([dense.data_ptr(), element, 0 if whole else index.data_ptr(), out.data_ptr(), adds])
        rows[-1] += [kept, programs]
        programs += -(-kept // size)
    interpreted.gather(torch.tensor(rows), programs, inverse, size)
    assert all(same_bits(out, wanted) for (_, _, out), wanted in zip(made, expected, strict=True))
    interpreted.gather(torch.tensor(rows), 0, inverse, size)


def masks_of(model, share=0.7):
    """One at random for each matrix, of which one keeps a single weight."""
    stream = torch.Generator().manual_seed(1)
    found = {
        name: torch.rand(one.shape, generator=stream) > share
        for name, one in model.named_parameters()
        if one.dim() > 1
    }
    next(iter(found.values())).zero_().view(-1)[5] = True
    return found


def transposed():
    """Layers whose memory runs in other orders: a transposed matrix, channels last."""
    torch.manual_seed(0)
    model = conv().to(memory_format=torch.channels_last)
    model.head.weight = nn.Parameter(torch.randn(16, 5).t())
    return model


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("build", [gpt, conv, transposed])
def test_a_training_ends_in_the_bits_of_one_without_kernels(compiling, monkeypatch, build, dtype):
    ends = []
    for kernels in (True, False):
        monkeypatch.setattr(device_jit, "compiles", lambda device, found=kernels: found)
        model = build()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        handle = samo.wrap(model, optimizer, masks_of(model), dtype=dtype)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        assert (handle.engine.temporary == 0) == (kernels or dtype == torch.float32)
        ends.append(model.state_dict())
    assert all(torch.equal(one, ends[1][name]) for name, one in ends[0].items())


def wrapped(model, dtype, mask=0.5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return optimizer, samo.wrap(model, optimizer, sparsity=mask, dtype=dtype)


@pytest.fixture(params=["kernels", "torch"])
def either(request):
    """With the kernels, and without."""
    if request.param == "kernels":
        request.getfixturevalue("compiling")


WRITES = {
    "in place": lambda weight, mask: weight.detach().masked_fill_(~mask, 3.0),
    "through .data": lambda weight, mask: weight.data.masked_fill_(~mask, 3.0),
    "another .data": lambda weight, mask: setattr(
        weight, "data", weight.data.masked_fill(~mask, 3.0)
    ),
}  # fmt: skip


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_where_weights_are_pruned_is_zero_after_the_step(write, dtype):
    """Torch counts only the first of these writes; the third one moves the layer."""
    model = nn.Linear(24, 16)
    optimizer, handle = wrapped(model, dtype)
    mask = handle.masks()["weight"]
    for step in range(3):
        before = model.weight.detach().clone()
        WRITES[write](model.weight, mask)
        assert int((model.weight != before).sum()) == int((~mask).sum()), step
        model(torch.ones(2, 24)).sum().backward()
        optimizer.step()
        assert not model.weight[~mask].any()
        assert (model.weight[mask] != before[mask]).any()


@pytest.mark.usefixtures("either")
def test_a_backward_through_weights_that_were_expanded_since_is_refused_as_ever():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer, _ = wrapped(model, torch.float16)
    loss = model(torch.randn(2, 8)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_table_is_made_anew_only_where_a_layer_has_moved(compiling, monkeypatch):
    made, rows = [], expansion._rows
    monkeypatch.setattr(expansion, "_rows", lambda *given: made.append(1) or rows(*given))
    model = gpt()
    optimizer, handle = wrapped(model, torch.bfloat16)
    for step in range(3):
        loss_of(model, step).backward()
        optimizer.step()
    assert len(made) == 1
    weight = model.blocks[0].expand.weight
    weight.data = weight.data.clone()
    optimizer.step()
    optimizer.step()
    assert len(made) == 2
    master = next(slot.master for slot in handle.engine.slots if slot.param is weight)
    mask = handle.masks()["blocks.0.expand.weight"]
    assert torch.equal(weight[mask], master.to(torch.bfloat16))


def test_no_address_of_another_dtype_or_of_freed_memory_is_written_to(compiling):
    """A closure runs between the look at the model and the expansion."""
    model = nn.Linear(16, 16)
    optimizer, _ = wrapped(model, torch.float32)

    def casts():
        loss = model(torch.ones(1, 16)).sum()
        loss.backward()
        model.half()
        return loss

    with pytest.raises(StateMismatchError, match=r"is torch\.float16"):
        optimizer.step(casts)

    def frees():
        loss = model(torch.ones(1, 16)).sum()
        loss.backward()
        model.weight.untyped_storage().resize_(0)
        return loss

    model.float()
    with pytest.raises(RuntimeError):
        optimizer.step(frees)


def not_compiled(*_):
    raise RuntimeError("PassManager::run failed")


BROKEN = {
    "nothing": {},
    "gather writes nothing": {"gather": lambda *_: None},
    "scatter writes nothing": {"scatter": lambda *_: None},
    "gather is not compiled": {"gather": not_compiled},
    "scatter is not compiled": {"scatter": not_compiled},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_kernels_are_tried_before_any_gradient_is_given_to_them(compiling, caplog, monkeypatch, broken):
    """A training without them goes on."""
    from dynaquant_core.memory.samo import trial

    trial.agrees.cache_clear()
    for name, other in BROKEN[broken].items():
        monkeypatch.setattr(compiling, name, other)
    model = gpt()
    optimizer, handle = wrapped(model, torch.float16)
    weight = model.blocks[0].expand.weight
    before = weight.detach().clone()
    loss_of(model, 0).backward()
    optimizer.step()
    assert (weight != before).any()
    assert not weight[~handle.masks()["blocks.0.expand.weight"]].any()
    told = sum("samo: the kernels" in record.getMessage() for record in caplog.records)
    assert bool(handle.engine._gathering._layers) == (broken == "nothing") == (told == 0)
    assert told <= 1
    trial.agrees.cache_clear()


class Allocated(Storages):
    """Remembers how many bytes lie at each address that a tensor has got."""

    def __init__(self):
        super().__init__()
        self.at = {}

    def _saw(self, storage):
        super()._saw(storage)
        self.at[storage.data_ptr()] = storage.nbytes()


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_trial_writes_into_its_own_memory_whatever_the_default_dtype_is(compiling, monkeypatch, default):
    """The kernel writes float32 at an address, and what lies behind it may be a user's weights."""
    from dynaquant_core.memory.samo import trial

    true, found = compiling.gather, []
    with Allocated() as memory:

        def gather(layers, *rest):
            found.extend(memory.at[out] - 4 * kept for _, _, _, out, _, kept, _ in layers.tolist())
            assert min(found) >= 0
            true(layers, *rest)

        monkeypatch.setattr(compiling, "gather", gather)
        former = torch.get_default_dtype()
        torch.set_default_dtype(default)
        try:
            assert trial.agrees.__wrapped__(torch.device("cpu"))
        finally:
            torch.set_default_dtype(former)
    assert len(found) == 12
