"""Every method of the table passes every check of the kit."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError
from dynaquant_core.methods import Method, registry, resolve_method
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.store import CheckpointStore
from tests.methods import method_kit as kit
from tests.methods.method_cases import METHODS
from tests.methods.streams import hostile
from tests.store.kit import is_same

EVERY = pytest.mark.parametrize("row", METHODS)


def test_the_table_holds_every_method():
    assert {case.method for case in METHODS.values()} == set(registry.BUILT_IN)


@EVERY
def test_protocol_and_options(row):
    method = METHODS[row].build()
    assert isinstance(method, Method)
    assert method.name == METHODS[row].method
    assert resolve_method({"name": method.name, **method.options()}).options() == method.options()
    with pytest.raises(ConfigError, match=f"strenght|{method.name}"):
        resolve_method({"name": method.name, "strenght": 3})
    with pytest.raises(ConfigError, match="strenght"):
        method.config({"strenght": 3})


@EVERY
@pytest.mark.parametrize("restores", [False, True])
def test_a_chain_of_six(row, restores):
    case = METHODS[row]
    kit.check_chain(case.build(), case.points(), restores=restores)


@EVERY
@pytest.mark.parametrize("restored", [False, True])
def test_going_back_to_an_older_link(row, restored):
    for point in METHODS[row].points():
        kit.check_rejoined(METHODS[row].build(), point, restored=restored)


@EVERY
@pytest.mark.parametrize("dtype", kit.FLOATS[1:])
def test_dtypes(row, dtype):
    kit.check_dtypes(METHODS[row].build(), METHODS[row].points(), dtype)


@EVERY
def test_the_last_point_keeps_every_bit(row):
    kit.check_exact(METHODS[row].build(), METHODS[row].points()[-1])


@EVERY
def test_space(row):
    kit.check_space(METHODS[row].build())


@EVERY
def test_nothing_and_tiny_tensors(row):
    case = METHODS[row]
    for point in case.points():
        kit.check_nothing(case.build(), point)
    kit.check_tiny(case.build(), case.points())


@EVERY
def test_wrong_bases(row):
    for point, (_, delta) in zip(METHODS[row].points(), pairs(row), strict=True):
        kit.check_wrong_bases(METHODS[row].build(), delta, point)


@EVERY
def test_changed_shapes_in_a_store(row, tmp_path):
    """A model that grew: the next checkpoint stands alone, whatever the method."""
    case = METHODS[row]
    exact = case.points()[-1]
    store = CheckpointStore(tmp_path, method=case.build(), moments="exact")
    wider = dict(kit.SHAPES) | {"mlp.weight": (64, 80), "head.weight": (32, 32)}
    states = [
        kit.training_state(0),
        kit.training_state(1),
        kit.training_state(2, shapes=wider),
        kit.training_state(3, shapes=wider),
    ]
    kinds = [store.save(step, state, config=exact).kind for step, state in enumerate(states)]
    assert (kinds[0], kinds[2]) == ("key", "key")
    for step, state in enumerate(states):
        assert is_same(CheckpointStore(tmp_path).load(step), state)


@EVERY
@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_another_object_with_other_threads_makes_the_same_bytes(row, threads, monkeypatch):
    expected = pairs(row)
    monkeypatch.setenv("DYNAQUANT_THREADS", threads)
    for point, known in zip(METHODS[row].points(), expected, strict=True):
        for saved, other in zip(kit.delta(METHODS[row].build(), point), known, strict=True):
            assert saved.streams == other.streams
            assert saved.size == other.size
            assert saved.shown == other.shown


@EVERY
def test_detached(row):
    for point in METHODS[row].points():
        kit.check_detached(METHODS[row].build(), point)


@EVERY
def test_loaded_tensors_are_the_readers_own(row):
    for pair in pairs(row):
        for saved in pair:
            kit.check_readers_memory(saved)


@EVERY
def test_names(row):
    for key, delta in pairs(row):
        kit.check_names(METHODS[row].build(), key, delta)


@cache
def pairs(row: str) -> list[tuple[kit.Saved, kit.Saved]]:
    """A key and a delta of each point, made once."""
    return [kit.delta(METHODS[row].build(), point) for point in METHODS[row].points()]


# -- bytes ---------------------------------------------------------------------------------------


@EVERY
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_hostile_streams(row, data):
    key, delta = pairs(row)[data.draw(st.integers(0, len(pairs(row)) - 1))]
    source, ref = data.draw(st.sampled_from([(key.table, None), (delta.table, key.read)]))
    table = hostile(data, source)
    kit.check_survives(METHODS[row].build(), table, ref)


def test_the_kit_notices_what_is_wrong():
    """The checks can fail: a method that rounds, and one that changes what it was given."""

    class Rounds(Exact):
        def draft(self, state, ref, config, hints):
            return super().draft({k: v.half().to(v.dtype) for k, v in state.items()}, ref, config, hints)

    class Scribbles(Exact):
        def draft(self, state, ref, config, hints):
            state["model.mlp.weight"] += 1
            return super().draft(state, ref, config, hints)

    with pytest.raises(AssertionError):
        kit.check_exact(Rounds(), NoConfig())
    with pytest.raises(AssertionError, match="live tensors were changed"):
        kit.check_chain(Scribbles(), [NoConfig()], restores=False)
