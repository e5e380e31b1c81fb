"""ExCP: what is kept of weights and moments, what a chain adds up to, bytes that lie."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.excp import Excp, ExcpConfig
from dynaquant_core.methods.excp_plan import medians
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer
from tests.methods import method_kit as kit
from tests.methods.memory import Memory

EXCP = Excp()
SHAPE = (40, 50)


def tree(weight, kinds, name="fc.weight"):
    """A state of one weight and its moments, as an optimizer writes it."""
    state = {0: {"step": torch.tensor(9.0), **kinds}}
    return {"model": {name: weight}, "optimizer": {"state": state, "param_groups": [{"params": [0]}]}}


def drawn(seed, scale=1.0):
    return scale * torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def adam(second=1e-8, seed=5):
    first = drawn(seed, 1e-4)
    return {"exp_avg": first, "exp_avg_sq": second * (1 + torch.rand(SHAPE))}


def two(before, after, config=None):
    """(what a reader has of the first state, of the second), by name."""
    point = config or ExcpConfig()
    key = kit.save(EXCP, kit.taken(EXCP, before), None, point)
    later = kit.save(EXCP, kit.taken(EXCP, after), key.written, point, key.read)
    return key.read.state(), later.read.state()


WEIGHT = "model.fc.weight"
FIRST, SECOND = (f"optimizer.state.0.{kind}" for kind in ("exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize(("second", "alpha"), [(1e-8, 1.0), (1e-8, 4.0), (1e-9, 0.5), (1e-12, 1.0)])
def test_a_change_is_kept_above_the_published_threshold(second, alpha):
    weight, change = drawn(0), drawn(1, 1e-3)
    kinds = adam(second)
    factor = min(2.5, alpha * 5e-5 / float(kinds["exp_avg_sq"].double().mean().sqrt()))
    before, after = two(tree(weight, kinds), tree(weight + change, kinds), ExcpConfig(alpha=alpha))
    change = (weight + change) - weight  # as float32 has it
    kept = change.abs() > factor * float(np.median(change.abs()))
    assert torch.equal(after[WEIGHT] != before[WEIGHT], kept)
    assert 0.05 < kept.float().mean() < 0.95
    assert medians(alpha, kinds) == pytest.approx(factor)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 4.0])
def test_without_second_moments_alpha_counts_medians(alpha):
    weight, change = drawn(0), drawn(1, 1e-3)
    change = (weight + change) - weight
    kept = change.abs() > alpha * float(np.median(change.abs()))
    for kinds in ({}, {"momentum_buffer": drawn(2)}):
        before, after = two(tree(weight, kinds), tree(weight + change, kinds), ExcpConfig(alpha=alpha))
        assert torch.equal(after[WEIGHT] != before[WEIGHT], kept)


def test_moments_are_kept_together_where_the_weight_is_and_the_first_is_large():
    weight, change, kinds = drawn(0), drawn(1, 1e-3), adam()
    before, after = two(tree(weight, kinds), tree(weight + change, kinds))
    large = kinds["exp_avg"].abs() > 2 * kinds["exp_avg"].abs().double().mean()
    assert torch.equal(before[FIRST] != 0, large)  # a key has no changes to go by
    kept = large & (after[WEIGHT] != before[WEIGHT])
    assert 0 < kept.sum() < large.sum()
    for name in (FIRST, SECOND):
        assert torch.equal(after[name] != 0, kept)
    assert (after[SECOND] >= 0).all()
    assert torch.equal(after[FIRST].sign()[kept], kinds["exp_avg"].sign()[kept])


def test_small_second_moments_do_not_become_zero():
    """They would in float16, whose smallest number is 6e-8."""
    weight, kinds = drawn(0), adam(second=1e-12)
    _, after = two(tree(weight, kinds), tree(weight + drawn(1, 1e-3), kinds))
    kept = after[FIRST] != 0
    assert (after[SECOND][kept] > 5e-13).all()


@pytest.mark.parametrize(("bits", "centres"), [(4, 15), (2, 3)])
def test_a_tensor_takes_few_values(bits, centres):
    weight, kinds = torch.zeros(SHAPE), adam()
    _, after = two(tree(weight, kinds), tree(drawn(1), kinds), ExcpConfig(bits=bits))
    for tensor in after.values():
        assert 2 < tensor.unique().numel() <= centres + 1


def test_a_key_keeps_weights_bit_for_bit():
    weight = drawn(0)
    before, _ = two(tree(weight, adam()), tree(weight, adam()), ExcpConfig(bits=2, alpha=4.0))
    assert torch.equal(before[WEIGHT], weight)


def test_what_was_pruned_is_not_lost_but_comes_with_a_later_change():
    """The next change is taken from what a reader holds."""
    target, held, errors = drawn(1), None, []
    held = kit.save(EXCP, kit.taken(EXCP, tree(drawn(0), {})), None, ExcpConfig()).read
    for _ in range(6):
        held = kit.save(EXCP, kit.taken(EXCP, tree(target, {})), held, ExcpConfig()).read
        errors.append(float((held.state()[WEIGHT] - target).norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 * errors[0]


def test_bolder_points_are_smaller_and_in_the_end_farther_off():
    weight, after, kinds = drawn(0), drawn(0) + drawn(1, 1e-3), adam()
    base = kit.save(EXCP, kit.taken(EXCP, tree(weight, kinds)), None, ExcpConfig()).read
    space = EXCP.space(gradients=False)
    for bits in space.axes["bits"]:
        saves = [
            kit.save(EXCP, kit.taken(EXCP, tree(after, kinds)), base, space.build(bits=bits, alpha=alpha))
            for alpha in space.axes["alpha"]
        ]
        sizes = [saved.table.nbytes for saved in saves]
        errors = [float((saved.read.state()[WEIGHT] - after).norm()) for saved in saves]
        assert sizes == sorted(sizes, reverse=True)
        if bits == 4:
            assert errors[2:] == sorted(errors[2:])
            assert errors[-1] > 1.5 * min(errors)


def test_moments_that_pruning_would_break_stay_as_they_are():
    """What Adafactor factored; squares of which centred RMSprop subtracts another average's square."""
    weight, change = drawn(0), drawn(1, 1e-3)
    factored = {"exp_avg_sq_row": torch.rand(30, 40), "exp_avg_sq_col": torch.rand(30, 50)}
    centred = {"square_avg": torch.rand(SHAPE), "grad_avg": drawn(3), "momentum_buffer": drawn(4)}
    for kinds, kept in ((factored, list(factored)), (centred, ["square_avg", "grad_avg"])):
        _, after = two(tree(weight, kinds), tree(weight + change, kinds))
        for kind in kept:
            assert torch.equal(after[f"optimizer.state.0.{kind}"], kinds[kind])
    assert (after["optimizer.state.0.momentum_buffer"] == 0).any()


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize(
    "kinds", [["square_avg"], ["sum"], ["square_avg", "acc_delta"], ["square_avg", "momentum_buffer"]]
)
def test_second_moments_that_divide_steps_alone_are_coded_and_not_pruned(kinds, bits):
    """Each step is divided by their root: where it is zero the next is ten times too long."""
    moments = {kind: drawn(number, 1e-3) ** 2 for number, kind in enumerate(kinds, 7)}
    for moment in moments.values():
        moment[0] = 0.0  # a row that never got a gradient
    _, after = two(tree(drawn(0), moments), tree(drawn(0) + drawn(1, 1e-3), moments), ExcpConfig(bits=bits))
    for kind, moment in moments.items():
        found = after[f"optimizer.state.0.{kind}"]
        if kind == "momentum_buffer":
            assert (found[1:] == 0).any()
            continue
        assert torch.equal(found > 0, moment > 0)
        assert found.unique().numel() <= 2**bits


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.RMSprop(weights, lr=1e-3),
        lambda weights: torch.optim.RMSprop(weights, lr=1e-4, momentum=0.9),
        lambda weights: torch.optim.Adagrad(weights, lr=1e-2),
        lambda weights: torch.optim.Adadelta(weights, lr=0.5),
    ],
)
def test_no_optimizer_leaps_after_a_restore(tmp_path, make):
    def run():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
        return model, make(model.parameters())

    def losses(model, optimizer, checkpoints, count):
        inputs = torch.randn(128, 32, generator=torch.Generator().manual_seed(1))
        found = []
        for _ in range(count):
            loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checkpoints.step()
            found.append(loss.item())
        return found

    model, optimizer = run()
    with Checkpointer(tmp_path, model, optimizer, every=100, method="excp") as checkpoints:
        before = losses(model, optimizer, checkpoints, 200)
    again, other = run()
    with Checkpointer(tmp_path, again, other) as checkpoints:
        assert checkpoints.restore() == 200
        after = losses(again, other, checkpoints, 5)
    assert max(after) < max(before[-1], after[0]) * 1.05


def test_moments_whose_weight_is_elsewhere_are_kept_together():
    """Of a parameter whose number says nothing, a first moment without its second would still be a leap."""
    kinds = adam()
    state = {name: tensor.clone() for name, tensor in zip((FIRST, SECOND), kinds.values(), strict=True)}
    roles = dict.fromkeys(state, "moment")
    draft = EXCP.draft(state, None, ExcpConfig(), Hints(roles=roles))
    shown = dict(draft.decoded)
    first = state[FIRST]
    for name in state:
        assert torch.equal(shown[name] != 0, first.abs() > 2 * first.abs().double().mean())


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(kit.FLOATS),
    st.floats(0, 2.5),
    st.sampled_from([2, 4]),
    st.sampled_from([1e-30, 1.0, 1e4, 3e38]),
    st.integers(0, 99),
)
def test_any_change_stays_finite_and_within_the_largest(dtype, alpha, bits, scale, seed):
    limit = torch.finfo(dtype).max
    draw = torch.Generator().manual_seed(seed)
    states = [
        {
            "w": (scale * torch.randn(16, 16, generator=draw))
            .clamp(-min(limit, 3e38), min(limit, 3e38))
            .to(dtype)
        }
        for _ in range(2)
    ]
    for state in states:  # clamped to two values it would be a mask, which a store keeps exact
        state["w"][0, :3] = torch.arange(3)
    key = kit.save(EXCP, kit.taken(EXCP, {"model": states[0]}), None, ExcpConfig())
    point = ExcpConfig(alpha=alpha, bits=bits)
    later = kit.save(EXCP, kit.taken(EXCP, {"model": states[1]}), key.read, point)
    assert later.shown == kit.bits(later.read.state())
    assert torch.isfinite(later.read.state()["model.w"]).all()


# -- a store -------------------------------------------------------------------------------------


def test_a_store_of_a_model_that_trains(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    store = CheckpointStore(tmp_path, method="excp")
    for step in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(64, 30)).square().mean().backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        info = store.save(step, state, config=ExcpConfig(alpha=0.0))
        assert (info.kind, info.method) == ("key" if step == 0 else "delta", "excp")
    loaded = CheckpointStore(tmp_path).load()
    for name, tensor in model.state_dict().items():
        assert (loaded["model"][name] - tensor).norm() <= 0.1 * tensor.norm(), name
    owned = loaded["optimizer"]["state"]
    assert (owned[0]["exp_avg"] == 0).any()  # a matrix's moment is this method's, whatever moments= says
    assert torch.equal(owned[1]["exp_avg"], optimizer.state_dict()["state"][1]["exp_avg"])  # a vector's exact
    fresh = torch.optim.AdamW(model.parameters(), 1e-3)
    fresh.load_state_dict(loaded["optimizer"])


# -- points and bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{"bits": 3}, {"bits": True}, {"bits": "4"}, {"alpha": -1}, {"alpha": "x"}])
def test_points_that_are_none(data):
    with pytest.raises(ConfigError, match=next(iter(data))):
        EXCP.config(data)


@pytest.fixture(scope="module")
def files():
    """(reader's base, delta)."""
    weight, kinds = drawn(0), adam()
    key = kit.save(EXCP, kit.taken(EXCP, tree(weight, kinds)), None, ExcpConfig())
    return key.read, kit.save(
        EXCP, kit.taken(EXCP, tree(weight + drawn(1, 1e-3), kinds)), key.read, ExcpConfig()
    )


def damaged(saved, key, codec, payload):
    table = Memory({}, [])
    table.specs, table.rows = saved.table.specs, saved.table.rows
    return table.with_row(key, codec, payload)


def test_a_missing_base_is_named(files):
    with pytest.raises(MissingBaseError, match=WEIGHT):
        EXCP.decode(files[1].table, None)


def test_a_stream_that_unpacks_to_far_more_is_refused(files):
    """256 MiB of zeros in 40 kB: never unpacked."""
    base, saved = files
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}]
    bomb = lzma.compress(bytes(1 << 28), lzma.FORMAT_RAW, filters=filters)
    with pytest.raises(CorruptFileError, match=r"1001 bytes, expected 1000|does not end"):
        EXCP.decode(damaged(saved, (WEIGHT, "change4"), 11, bomb), base)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_centre_that_is_no_number_is_refused(files, value):
    base, saved = files
    centres = np.full(15, value, np.float32).tobytes()
    with pytest.raises(CorruptFileError, match="centre"):
        EXCP.decode(damaged(saved, (WEIGHT, "centres"), 0, centres), base)


def test_a_tensor_without_codes_is_refused(files):
    base, saved = files
    table = damaged(saved, (WEIGHT, "centres"), 0, b"").without((WEIGHT, "change4"))
    with pytest.raises(CorruptFileError, match="no codes"):
        EXCP.decode(table, base)
