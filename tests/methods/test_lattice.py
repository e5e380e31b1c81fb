"""What users of the method rely on: readers get what was measured, sizes are as announced, bytes saved."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.cells import NARROW, WIDE, Cells
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.words import Plain, plain_of
from tests.methods.conftest import layers, trained
from tests.methods.streams import StreamTable, assert_same, store

LATTICE = Lattice()
#: Narrow cells, wide ones, wide ones with thousands of outliers, narrow ones at their boldest, and words.
POINTS = [LatticeConfig(scale=scale) for scale in (0.5, 0.1, 0.01, 8.0, "bf16", "exact")]


def with_vectors(state):
    """A state with what a model has beside its matrices: norms, biases, and some that never changed."""
    draw = torch.Generator().manual_seed(7)
    small = {
        "norm.weight": 1 + 0.1 * torch.randn(64, generator=draw),
        "norm.bias": 0.01 * torch.randn(64, generator=draw),
        "zeros.bias": torch.zeros(192),
        "ones.weight": torch.full((40, 50), 1.5),
    }
    return state | {name: tensor.to(next(iter(state.values())).dtype) for name, tensor in small.items()}


@pytest.fixture
def run(chain):
    """Six states of one run, vectors included."""
    return [trained(with_vectors(state), 0.01, seed) for seed, state in enumerate(chain)]


def far_out(state, spreads=(40, -300)):
    """The state with one weight in each tensor that is so many spreads away, in turn."""
    found = {name: tensor.clone() for name, tensor in state.items()}
    for number, tensor in enumerate(found.values()):
        tensor.view(-1)[3 + number] = spreads[number % len(spreads)] * float(tensor.std())
    return found


def kinds(held):
    """Which ways of holding a tensor occur."""
    found = set()
    for own in held.tensors.values():
        if isinstance(own, Cells):
            found |= {own.alphabet, ("outliers", own.alphabet)} if own.outliers.size else {own.alphabet}
        else:
            found.add(own.bf16)
    return found


def test_the_points_of_these_tests_use_every_way_of_holding_a_tensor(run):
    seen = set()
    for point in POINTS:
        seen |= kinds(store(LATTICE, far_out(run[0]), None, point)[1])
    assert seen == {NARROW, WIDE, ("outliers", NARROW), ("outliers", WIDE), False, True}


@pytest.mark.parametrize(
    "scales", [(0.5,), (0.5, 0.5, 8.0), (8.0, 0.02), (0.05, "bf16", 2.0), ("exact", 0.1)]
)
@pytest.mark.parametrize("restores", [False, True])
def test_a_reader_gets_what_the_draft_showed_along_a_chain(run, scales, restores):
    writer = reader = None
    for index, state in enumerate(run):
        point = LatticeConfig(scale=scales[index % len(scales)])
        draft = LATTICE.draft(state, writer, point, Hints())
        seen = {name: tensor.clone() for name, tensor in draft.decoded}
        streams, held = draft.encode()
        reader = LATTICE.decode(StreamTable(streams, state), reader)
        assert_same(seen, reader.state())
        assert_same(seen, dict(held.items()))
        writer = reader if restores else held


@pytest.mark.parametrize("restored", [False, True])
def test_every_way_from_one_point_to_another_decodes(run, restored):
    before, after = (far_out(state) for state in run[:2])
    for first in POINTS:
        _, held, read, _ = store(LATTICE, before, None, first)
        for second in POINTS:
            seen, _, found, _ = store(LATTICE, after, read if restored else held, second)
            assert_same(seen, found.state())


def test_exact_returns_every_bit_and_bfloat16_rounds(run):
    for index, base in ((0, None), (1, store(LATTICE, run[0], None, POINTS[0])[1])):
        assert_same(run[index], store(LATTICE, run[index], base, LatticeConfig(scale="exact"))[2].state())
        rounded = store(LATTICE, run[index], base, LatticeConfig(scale="bf16"))[2].state()
        for name, tensor in run[index].items():
            assert torch.equal(rounded[name], rounded[name].bfloat16().float())
            assert ((rounded[name] - tensor).abs() <= 2**-7 * tensor.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_dtype_comes_back_as_its_own(dtype):
    ref, state = None, with_vectors(layers(dtype=dtype))
    for seed in range(3):
        seen, _, ref, _ = store(LATTICE, state, ref, LatticeConfig(scale=0.25))
        assert_same(seen, ref.state())
        for name, tensor in ref.state().items():
            held = ref.tensors[name]
            error = (tensor.double() - state[name].double()).abs()
            step = held.step if isinstance(held, Cells) else 0.0
            size = torch.maximum(state[name].abs(), tensor.abs()).double()
            room = torch.finfo(dtype).eps * size + 1e-7 * step
            assert (error <= 0.5 * step + 2 * room).all(), name
        state = trained(state, seed=seed)


@pytest.mark.parametrize("restored", [False, True])
def test_announced_size_is_within_two_percent(restored):
    draw = torch.Generator().manual_seed(3)
    first = {f"layer{i}.weight": torch.randn(330, 256, generator=draw) * (0.01 + 0.03 * i) for i in range(3)}
    first |= {f"norm{i}.weight": torch.randn(256, generator=draw) for i in range(40)}
    states, ref = [first, trained(first, 0.02)], None
    states += [trained(states[-1], 0.1, seed=4), far_out(states[-1])]
    for scale in (0.5, 0.02, 0.003, "bf16"):
        for state in states:
            draft = LATTICE.draft(state, ref, LatticeConfig(scale=scale), Hints())
            announced = draft.size
            streams, held = draft.encode()
            table = StreamTable(streams, state)
            ref = LATTICE.decode(table, ref) if restored else held
            assert abs(announced - table.nbytes) <= 0.02 * table.nbytes + 64
            assert draft.size == announced


def test_a_tensor_decodes_alone_along_a_chain(run):
    tables, whole, ref = [], [], None
    for state, scale in zip(run, (0.5, 0.5, 2.0, 0.02, 0.5, 0.5), strict=True):
        _, held, _, table = store(LATTICE, state, ref, LatticeConfig(scale=scale))
        tables.append(table)
        whole.append(held.state())
        ref = held
    for name in run[0]:
        alone = None
        for table, state in zip(tables, whole, strict=True):
            alone = LATTICE.decode(table, alone, [name])
            assert_same({name: state[name]}, alone.state())
            assert_same({name: state[name]}, dict(alone.items()))


def test_decoding_one_tensor_reads_its_own_run_only():
    state = {f"{name}.weight": torch.randn(300, 300) for name in "abc"}
    _, _, _, table = store(LATTICE, state, None, LatticeConfig())
    for kind in ("residuals", "outliers"):
        table.rows.pop(("b.weight", kind), None)
    assert list(LATTICE.decode(table, None, ["a.weight"]).state()) == ["a.weight"]


@pytest.mark.parametrize("scale", [0.5, 0.02, "bf16", "exact"])
def test_a_state_that_did_not_move_costs_next_to_nothing(run, scale):
    _, held, read, key = store(LATTICE, far_out(run[0]), None, LatticeConfig(scale=scale))
    _, _, _, table = store(LATTICE, far_out(run[0]), held, LatticeConfig(scale=scale))
    assert table.nbytes < 100 < key.nbytes / 50
    restored = read.state()
    seen, _, _, table = store(LATTICE, restored, read, LatticeConfig(scale=scale))
    assert table.nbytes < 100
    assert_same(restored, seen)


@pytest.mark.parametrize("restored", [False, True])
def test_a_base_saves_bytes(run, restored):
    _, held, read, _ = store(LATTICE, run[0], None, LatticeConfig())
    _, _, _, delta = store(LATTICE, run[1], read if restored else held, LatticeConfig())
    _, _, _, alone = store(LATTICE, run[1], None, LatticeConfig())
    assert delta.nbytes < 0.5 * alone.nbytes


def test_histories_save_bytes():
    """Where few weights move again and again, a reader knows which, and which way."""
    draw = torch.Generator().manual_seed(0)
    state = {"w.weight": torch.randn(512, 512, generator=draw)}
    drift = torch.where(torch.rand(512, 512, generator=draw) < 0.05, 0.4, 0.0)
    ref, sizes = None, []
    for _ in range(6):
        _, ref, _, table = store(LATTICE, state, ref, LatticeConfig())
        sizes.append(table.nbytes)
        state = {"w.weight": state["w.weight"] + drift}
    assert sizes[-1] < 0.75 * sizes[1]


def test_bolder_points_are_smaller(run):
    hints = Hints()
    scales = (0.02, 0.1, 0.5, 2.0, 8.0)
    sizes = [LATTICE.draft(run[0], None, LatticeConfig(scale=scale), hints).size for scale in scales]
    assert all(large > small for large, small in pairwise(sizes))


@pytest.mark.parametrize("scale", [0.02, 0.5, 8.0])
def test_tensors_of_equal_values_come_back_exactly_and_cost_nothing(scale):
    level = {
        "zeros.bias": torch.zeros(3000),
        "ones.weight": torch.ones(300, 300),
        "neg": torch.full((9,), -0.0),
    }
    state, ref = layers(), None
    for seed in range(3):
        seen, ref, read, table = store(LATTICE, state | level, ref, LatticeConfig(scale=scale))
        for name, tensor in level.items():
            assert torch.equal(read.state()[name].view(torch.int32), tensor.view(torch.int32))
            assert torch.equal(seen[name], tensor)
        assert sum(len(payload) for (name, _), (_, payload) in table.rows.items() if name in level) <= 12
        state = trained(state, seed=seed)
    moved = {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in level.items()}
    seen, held, read, _ = store(LATTICE, state | moved, ref, LatticeConfig(scale=scale))
    assert_same(seen, read.state())
    assert all(isinstance(held.tensors[name], Cells) for name in level)


@pytest.mark.parametrize("scale", [0.02, 0.5, 8.0])
def test_weights_a_million_spreads_away_come_back_within_half_a_step(run, scale):
    state, ref = far_out(run[0], (1e6, -1e6)), None
    for _ in range(3):
        seen, ref, read, _ = store(LATTICE, state, ref, LatticeConfig(scale=scale))
        assert_same(seen, read.state())
        for name, held in read.tensors.items():
            error = (read.state()[name] - state[name]).abs().double()
            step = held.step if isinstance(held, Cells) else 0.0
            assert (error <= 0.5 * step + 2e-7 * state[name].abs()).all(), name
        state = trained(state, 1e-7, seed=1)


def test_a_weight_too_far_for_any_step_keeps_its_tensor_exact():
    state = layers()
    state["conv.weight"].view(-1)[5] = 3e38
    seen, held, read, _ = store(LATTICE, state, None, LatticeConfig())
    assert isinstance(held.tensors["conv.weight"], Plain)
    assert torch.equal(read.state()["conv.weight"], state["conv.weight"])
    assert_same(seen, read.state())
    state = trained({name: tensor.clamp(-9, 9) for name, tensor in state.items()})
    seen, _, read, _ = store(LATTICE, state, held, LatticeConfig())
    assert_same(seen, read.state())


@pytest.mark.parametrize("scale", [0.5, 0.02])
def test_a_base_without_sense_costs_bytes_and_nothing_else(scale):
    state = layers()
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 0.0])
    filled = {name: bad.repeat(tensor.numel())[: tensor.numel()] for name, tensor in state.items()}
    words = {name: plain_of(filled[name].view(tensor.shape), bf16=False) for name, tensor in state.items()}
    seen, _, found, _ = store(LATTICE, state, Held(words, 3, 0.0, restored=False), LatticeConfig(scale=scale))
    assert_same(seen, found.state())


def test_live_tensors_are_not_read_after_detach(run):
    for base in (None, store(LATTICE, run[0], None, LatticeConfig())[1]):
        for point in POINTS:
            state = {name: tensor.clone() for name, tensor in run[1].items()}
            draft = LATTICE.draft(state, base, point, Hints())
            expected = {name: tensor.clone() for name, tensor in draft.decoded}
            draft.detach()
            for tensor in state.values():
                tensor.fill_(float("nan"))
            streams, held = draft.encode()
            assert_same(expected, held.state())
            assert_same(expected, dict(draft.decoded))
            assert_same(expected, LATTICE.decode(StreamTable(streams, run[1]), base).state())


@pytest.mark.parametrize("scale", [0.5, 0.02])
def test_neither_threads_nor_what_is_asked_first_changes_a_byte(run, scale, monkeypatch):
    large = {"big.weight": torch.randn(1100, 1000, generator=torch.Generator().manual_seed(1))}

    def written(threads, *first):
        monkeypatch.setenv("DYNAQUANT_THREADS", str(threads))
        ref, rows = None, []
        for state in run[:3]:
            draft = LATTICE.draft(state | large, ref, LatticeConfig(scale=scale), Hints())
            for ask in first:
                list(draft.decoded) if ask == "decoded" else getattr(draft, ask)
            streams, _ = draft.encode()
            rows.append([(one.name, one.kind, one.codec, one.payload) for one in streams])
            ref = LATTICE.decode(StreamTable(draft.encode()[0], state | large), ref)
        return rows, ref.state()

    rows, state = written(1)
    for threads, first in ((2, ("size",)), (5, ("decoded", "size")), (3, ("size", "decoded"))):
        again, found = written(threads, *first)
        assert again == rows
        assert_same(state, found)


def test_a_draft_shows_tensors_that_are_not_contiguous_or_need_gradients():
    weight = torch.randn(200, 100, generator=torch.Generator().manual_seed(2))
    plain = {"w": weight.t().contiguous()}
    odd = {"w": weight.t().requires_grad_()}
    _, _, read, table = store(LATTICE, odd, None, LatticeConfig())
    _, _, other, same = store(LATTICE, plain, None, LatticeConfig())
    assert table.rows == same.rows
    assert_same(read.state(), other.state())
