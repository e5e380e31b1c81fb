"""QD+: half a step a weight, a width by entropy, differences that survive a change of width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.coding import codec_name
from dynaquant_core.errors import ConfigError, CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.qd import Qd, QdConfig
from dynaquant_core.store import CheckpointStore
from tests.methods.conftest import layers, trained
from tests.methods.memory import Memory
from tests.methods.streams import assert_same, store

QD = Qd()
POINTS = [QdConfig(), QdConfig(maximum=64, minimum=8), QdConfig(maximum=8, minimum=8)]


def steps(tensor, bins):
    """The step of a layer of so many bins."""
    return (tensor.max() - tensor.min()).double() / (bins - 1)


@pytest.mark.parametrize("config", POINTS)
def test_a_weight_comes_back_within_half_a_step(chain, config):
    ref = None
    for state in chain:
        seen, ref, read, _ = store(QD, state, ref, config)
        assert_same(seen, read.state())
        for name, tensor in state.items():
            bins = ref.tensors[name].levels.bins
            assert config.minimum <= bins <= config.maximum
            assert (seen[name] - tensor).abs().max() <= steps(tensor, bins) / 2 * (1 + 1e-5)
            assert seen[name].min() == tensor.min()
            assert seen[name].max() == tensor.max()


def test_width_follows_entropy():
    """Normal weights take fewer bins than uniform ones; weights of few values the fewest."""
    generator = torch.Generator().manual_seed(0)
    state = {
        "normal": torch.randn(200, 200, generator=generator),
        "uniform": torch.rand(200, 200, generator=generator),
        "few": torch.randint(0, 3, (200, 200), generator=generator).float(),
    }
    _, held, _, _ = store(QD, state, None, QdConfig(maximum=256, minimum=8))
    assert {name: layer.levels.bins for name, layer in held.tensors.items()} == {
        "normal": 128,
        "uniform": 256,
        "few": 8,
    }


def test_differences_survive_every_change_of_width(chain):
    widths = [QdConfig(maximum=bins, minimum=bins) for bins in (16, 256, 8, 8, 64, 2)]
    written = read = None
    for state, config in zip(chain, widths, strict=True):
        draft = QD.draft(state, written, config, Hints())
        streams, held = draft.encode()
        table = Memory(state, streams)
        assert ("conv.weight", "delta") in table.rows or draft.is_key
        read = QD.decode(table, read)
        assert_same(held.state(), read.state())
        written = held


@pytest.mark.parametrize("config", POINTS)
def test_a_small_move_is_cheaper_as_a_difference(config):
    state = layers()
    moved = trained(state, share=0.002)
    _, held, _, key = store(QD, state, None, config)
    _, _, _, delta = store(QD, moved, held, config)
    _, _, _, alone = store(QD, moved, None, config)
    assert delta.nbytes < 0.8 * alone.nbytes
    assert abs(alone.nbytes - key.nbytes) < 0.05 * key.nbytes


def test_codes_are_under_huffman_and_what_did_not_move_costs_a_byte():
    state = layers()
    _, held, _, key = store(QD, state, None, QdConfig())
    assert {codec_name(codec) for (_, kind), (codec, _) in key.rows.items() if kind == "codes"} == {"huffman"}
    _, _, _, still = store(QD, state, held, QdConfig())
    assert still.nbytes <= len(state) + 16
    sizes = {kind: len(payload) for (_, kind), (_, payload) in still.rows.items()}
    assert (sizes["levels"], sizes["delta"]) == (0, 1)


def test_a_base_without_codes_is_stood_upon_by_none():
    """After an exact checkpoint every layer stands alone, although the checkpoint has a base."""
    state = layers()
    _, held, _, _ = store(QD, state, None, QdConfig(exact=True))
    seen, _, read, table = store(QD, trained(state), held, QdConfig())
    assert_same(seen, read.state())
    assert {kind for _, kind in table.rows} == {"layout", "levels", "codes"}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    st.integers(-8, 8),
    st.integers(0, 99),
    st.sampled_from(POINTS),
)
def test_any_dtype_and_scale(dtype, scale, seed, config):
    generator = torch.Generator().manual_seed(seed)
    first = (torch.randn(16, 20, generator=generator) * 2.0**scale).to(dtype)
    ref = None
    for tensor in (first, (first * 1.01).to(dtype)):
        seen, ref, read, _ = store(QD, {"w": tensor}, ref, config)
        assert_same(seen, read.state())
        bins = ref.tensors["w"].levels.bins
        rounding = torch.finfo(dtype).eps * tensor.abs().max().double()
        error = (seen["w"].double() - tensor.double()).abs().max()
        assert error <= steps(tensor, bins) / 2 * (1 + 1e-5) + rounding


def test_a_missing_base_is_named():
    state = layers()
    _, held, _, _ = store(QD, state, None, QdConfig())
    _, _, _, table = store(QD, trained(state), held, QdConfig())
    with pytest.raises(MissingBaseError, match="base"):
        QD.decode(table, None)


@pytest.mark.parametrize("levels", [(1.0, 0.0, 8), (0.0, float("nan"), 8), (0.0, 1.0, 8.5), (0.0, 1.0, 300)])
def test_damaged_levels(levels):
    state = {"w": torch.randn(20, 20)}
    _, _, _, source = store(QD, state, None, QdConfig())
    table = Memory(state, [])
    table.rows = source.rows | {("w", "levels"): (0, torch.tensor(levels).numpy().tobytes())}
    with pytest.raises(CorruptFileError, match="levels"):
        QD.decode(table, None)


def test_codes_above_the_levels_are_refused():
    state = {"w": torch.randn(20, 20)}
    _, held, _, wide = store(QD, state, None, QdConfig())
    _, low, _, narrow = store(QD, state, None, QdConfig(maximum=8, minimum=8))
    table = Memory(state, [])
    table.rows = wide.rows | {("w", "levels"): narrow.rows["w", "levels"]}
    with pytest.raises(CorruptFileError, match="code"):
        QD.decode(table, None)
    _, _, _, delta = store(QD, {"w": torch.randn(20, 20)}, held, QdConfig())
    table.rows = delta.rows | {("w", "levels"): narrow.rows["w", "levels"]}
    for base in (held, low):
        with pytest.raises(CorruptFileError, match="code"):
            QD.decode(table, base)


def test_a_chain_is_shortened_without_a_change(tmp_path):
    """A fresh draft of what is held would choose other widths: codes are written as they are."""
    saved = CheckpointStore(tmp_path, method="qd", moments="exact")
    states = [layers()]
    for step in range(3):
        saved.save(step, states[-1], config=QdConfig(maximum=256, minimum=8))
        states.append(trained(states[-1], seed=step))
    before = {step: saved.load(step) for step in range(3)}
    kept = saved.info(2).stored_bytes
    saved.delete(0)
    saved.compact()
    for step in (1, 2):
        assert_same(before[step], CheckpointStore(tmp_path).load(step))
    assert (saved.info(1).kind, saved.info(1).method) == ("key", "qd")
    assert CheckpointStore(tmp_path).info(2).stored_bytes < 4 * kept


def test_the_space():
    space = QD.space(gradients=True)
    assert space.axes == {"maximum": (256, 128, 64, 32, 16, 8), "minimum": (256, 128, 64, 32, 16, 8)}
    assert space.build(maximum=16, minimum=64) == QdConfig(maximum=16, minimum=16)
    assert space.beyond[-1].exact


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"maximum": 100}, "maximum"),
        ({"minimum": 512}, "minimum"),
        ({"maximum": 8, "minimum": 16}, "above"),
        ({"exact": "yes"}, "exact"),
        ({"maximun": 8}, "did you mean 'maximum'"),
    ],
)
def test_bad_points(data, said):
    with pytest.raises(ConfigError, match=said):
        QD.config(data)
