"""What users of the method rely on: readers get what was measured, sizes are as announced, errors bounded."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dynaquant_core as dq
from dynaquant_core.errors import ConfigError, CorruptFileError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.dynaquant import DynaQuant
from dynaquant_core.methods.registry import resolve_method
from tests.methods.conftest import layers, trained
from tests.methods.streams import StreamTable, assert_same, hostile, store

CONFIGS = [
    dq.Config(),
    dq.Config(bins=4, prune=0.5, protect=0.01),
    dq.Config(bins=3, prune=0.3, embedding_bins=7),
    dq.Config(bins=64, embedding_bins=64),
    dq.Config(bins="bf16"),
    dq.Config(bins="exact"),
]


@pytest.mark.parametrize(
    "options", [{}, {"coder": "paper"}, {"profile": "paper"}, {"codebook_scope": "global"}]
)
def test_a_reader_gets_what_the_draft_showed_along_a_chain(chain, options):
    method, ref = DynaQuant(**options), None
    for index, state in enumerate(chain):
        seen, held, read, _ = store(method, state, ref, CONFIGS[index % 4])
        assert_same(seen, read.state())
        assert_same(seen, held.state())
        ref = read


def test_every_way_from_one_configuration_to_another_decodes(chain):
    method = DynaQuant()
    for first in CONFIGS:
        _, held, _, _ = store(method, chain[0], None, first)
        for second in CONFIGS:
            seen, _, read, _ = store(method, chain[1], held, second)
            assert_same(seen, read.state())


def test_exact_returns_every_bit(chain):
    seen, _, read, _ = store(DynaQuant(), chain[0], None, dq.Config(bins="exact"))
    assert_same(chain[0], read.state())
    assert_same(chain[0], seen)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_dtype_comes_back_as_its_own(dtype):
    state = layers(dtype=dtype)
    seen, _, read, _ = store(DynaQuant(), state, None, dq.Config())
    assert_same(seen, read.state())
    for name, tensor in read.state().items():
        error = torch.linalg.vector_norm((tensor - state[name]).double())
        assert error <= 0.25 * torch.linalg.vector_norm(state[name].double())


@pytest.mark.parametrize("options", [{}, {"coder": "paper"}, {"codebook_scope": "global"}])
def test_announced_size_is_within_two_percent(options):
    generator = torch.Generator().manual_seed(3)
    first = {
        f"layer{i}.weight": torch.randn(512, 256, generator=generator) * (0.01 + 0.03 * i) for i in range(3)
    }
    states = [first, trained(first, 0.02), trained(trained(first, 0.02), 0.1, seed=4)]
    method, ref = DynaQuant(**options), None
    for state, config in zip(
        states, [dq.Config(), dq.Config(bins=8, prune=0.3), dq.Config(bins=12)], strict=True
    ):
        draft = method.draft(state, ref, config, Hints())
        announced = draft.size
        streams, ref = draft.encode()
        real = StreamTable(streams, state).nbytes
        assert abs(announced - real) <= 0.02 * real + 64
        assert abs(method.draft(state, ref, config, Hints()).size) > 0


def test_a_tensor_decodes_alone(chain):
    method = DynaQuant()
    _, held, _, _ = store(method, chain[0], None, dq.Config())
    seen, _, _, table = store(method, chain[1], held, dq.Config(bins=12))
    for name in chain[1]:
        assert_same({name: seen[name]}, method.decode(table, held, [name]).state())


def test_a_state_that_did_not_move_costs_next_to_nothing(chain):
    method = DynaQuant()
    _, held, _, key = store(method, chain[0], None, dq.Config(protect=0.0))
    _, _, _, table = store(method, chain[0], held, dq.Config(protect=0.0))
    assert table.nbytes < 150 < key.nbytes / 50


def test_a_base_saves_bytes(chain):
    method = DynaQuant()
    _, held, _, _ = store(method, chain[0], None, dq.Config())
    _, _, _, delta = store(method, chain[1], held, dq.Config())
    _, _, _, alone = store(method, chain[1], None, dq.Config())
    assert delta.nbytes < 0.7 * alone.nbytes


@pytest.mark.parametrize("scope", ["tensor", "global", "auto"])
def test_no_tensor_is_ruined_by_its_neighbours_or_its_tails(scope):
    generator = torch.Generator().manual_seed(5)
    shapes = {"tiny": 1e-6, "small": 1e-3, "large": 10.0}
    state = {
        f"{name}.weight": torch.randn(96, 96, generator=generator) * scale for name, scale in shapes.items()
    }
    state["tailed.weight"] = torch.randn(96, 96, generator=generator) ** 5
    state["shifted.weight"] = 1.0 + 0.01 * torch.randn(96, 96, generator=generator)
    state["two_values.weight"] = torch.where(torch.rand(96, 96, generator=generator) < 0.5, -1.0, 3.0)
    state["begun_at_zero.weight"] = torch.zeros(96, 96)
    _, _, read, _ = store(
        DynaQuant(codebook_scope=scope), state, None, dq.Config(bins=16, prune=0.1, protect=0.005)
    )
    for name, tensor in read.items():
        error = torch.linalg.vector_norm(tensor - state[name])
        assert error <= 0.25 * torch.linalg.vector_norm(state[name]), (name, float(error))


def test_gradients_protect_and_prune():
    state = {"a.weight": torch.randn(128, 128, generator=torch.Generator().manual_seed(0))}
    slope = 1e-4 * torch.rand(128, 128, generator=torch.Generator().manual_seed(1))
    slope[:2] = 1.0
    hints = Hints(gradients={"a.weight": slope})
    config = dq.Config(bins=8, prune=0.5, prune_metric="sensitivity", protect=0.01)
    seen, _, read, _ = store(DynaQuant(energy_cap=1.0), state, None, config, hints)
    assert_same(seen, read.state())
    decoded = read.state()["a.weight"]
    sensitive = (slope * state["a.weight"]).abs().flatten().topk(100).indices
    assert torch.equal(
        decoded.flatten()[sensitive], state["a.weight"].flatten()[sensitive].bfloat16().float()
    )
    assert (decoded[2:] == 0).float().mean() > 0.4


def test_pruning_by_sensitivity_needs_gradients(chain):
    with pytest.raises(ConfigError, match="needs gradients"):
        DynaQuant().draft(chain[0], None, dq.Config(prune=0.1, prune_metric="sensitivity"), Hints())


@pytest.mark.parametrize("name", ["bin", "coder_", "sigm"])
def test_unknown_options_name_the_nearest(name):
    with pytest.raises(ConfigError, match="no setting"):
        DynaQuant(**{name: 1})


def test_live_tensors_are_not_read_after_detach(chain):
    method = DynaQuant()
    state = {name: tensor.clone() for name, tensor in chain[0].items()}
    draft = method.draft(state, None, dq.Config(), Hints())
    expected = {name: tensor.clone() for name, tensor in draft.decoded}
    draft = method.draft(state, None, dq.Config(), Hints())
    draft.detach()
    for tensor in state.values():
        tensor.zero_()
    streams, held = draft.encode()
    assert_same(expected, held.state())
    assert_same(expected, method.decode(StreamTable(streams, chain[0]), None).state())


def test_the_published_profile_keeps_to_the_paper():
    options = DynaQuant(profile="paper").options()
    assert (options["sigma"], options["kmeans"], options["coder"]) == (0.2, "lloyd", "paper")
    assert (options["sketch"], options["codebook_scope"], options["energy_cap"]) == ("log", "tensor", 1.0)


def test_an_option_that_a_profile_would_drop_is_refused():
    """A grid over coders with the profile beside it had equal rows under different names."""
    with pytest.raises(ConfigError, match=r"profile='paper' sets coder to 'paper', got 'auto'"):
        DynaQuant(profile="paper", coder="auto")
    with pytest.raises(ConfigError, match=r"sets sigma to 0\.2, got 0\.5"):
        resolve_method({"name": "dynaquant", "sigma": 0.5, "profile": "paper"})
    options = DynaQuant(profile="paper", coder="paper", mantissa_bits=7).options()
    assert DynaQuant(**options).options() == options


def test_space_is_the_cube_of_216_and_ends_exact():
    space = DynaQuant().space(gradients=True)
    points = math.prod(len(values) for values in (*space.axes.values(), *space.variants.values()))
    assert points == 216
    assert space.beyond[-1].bins == "exact"
    assert len(DynaQuant().space(gradients=False).variants["prune_metric"]) == 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_streams_are_refused_or_decode_to_the_right_shape(chain, data):
    method = DynaQuant()
    _, held, _, table = store(method, chain[0], None, dq.Config(bins=8))
    _, _, _, delta = store(method, chain[1], held, dq.Config(bins=12, prune=0.2))
    source, ref = data.draw(st.sampled_from([(table, None), (delta, held)]))
    table = hostile(data, source)
    try:
        state = method.decode(table, ref).state()
    except CorruptFileError:
        return
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: tensor.shape for name, tensor in chain[0].items()
    }


def test_drafts_of_one_save_share_their_sketches(chain):
    method, hints = DynaQuant(), Hints()
    sizes = {bins: method.draft(chain[0], None, dq.Config(bins=bins), hints).size for bins in (4, 8, 16, 32)}
    assert all(small < large for small, large in pairwise(sizes.values()))
    surveys = next(iter(hints.scratch.values()))
    assert len(surveys) == 1
    assert np.sum([sketch.dense().total for sketch in surveys[True].signed.values()]) == sum(
        tensor.numel() for tensor in chain[0].values()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prune", [0.0, 0.1])
@pytest.mark.parametrize("metric", ["magnitude", "sensitivity"])
@pytest.mark.parametrize("share", [0.001, 0.7])
def test_zeros_stay_zeros_also_after_a_restore(tmp_path, share, metric, prune, dtype):
    """A sparse training often takes its mask from them; there may be more of them than are to be pruned."""
    generator = torch.Generator().manual_seed(0)
    zero = torch.rand(300, 200, generator=generator) < share
    config = dq.Config(bins=8, prune=prune, protect=0.005, prune_metric=metric)
    weights = {"fc.weight": torch.randn(300, 200, generator=generator), "table.weight": torch.randn(500, 64)}
    gradients = {name: torch.randn(weight.shape, generator=generator) for name, weight in weights.items()}
    with dq.CheckpointStore(tmp_path, method="dynaquant") as store:
        for step in range(1, 6):
            weights = {name: weight + 0.02 * torch.randn_like(weight) for name, weight in weights.items()}
            weights["fc.weight"][zero] = 0
            weights["table.weight"][0] = 0
            state = {name: weight.to(dtype) for name, weight in weights.items()}
            store.save(step, state, config=config, gradients=gradients)
            found = store.load(step)  # codes are drawn from now on
            assert not found["fc.weight"][zero].any()
            assert not found["table.weight"][0].any()
            if step < 5:
                weights = {name: weight.float() for name, weight in found.items()}


def test_centres_whose_distance_no_float32_holds(tmp_path):
    """Warnings are errors in the tests."""
    weight = torch.linspace(2e38, 3e38, 1024).reshape(32, 32)
    weight[::2] *= -1
    dq.save_file({"w": weight}, tmp_path / "far.dq", method="dynaquant", config=dq.Config(bins=4))
    assert torch.allclose(dq.load_file(tmp_path / "far.dq")["w"], weight, rtol=0.3)
