"""``zstd`` and ``none``: every bit of every tensor, and what it costs."""

from __future__ import annotations

import pytest
import torch
import zstandard

from dynaquant_core.errors import ConfigError
from dynaquant_core.methods import resolve_method
from dynaquant_core.state import words_of
from dynaquant_core.store import CheckpointStore
from tests.methods import method_kit as kit
from tests.methods.test_exact import model_state
from tests.store.kit import is_same, small_state

METHODS = [{"name": "zstd"}, {"name": "zstd", "level": 19}, {"name": "none"}]


@pytest.mark.parametrize("spec", METHODS)
def test_every_dtype_and_odd_value_comes_back(spec):
    method = resolve_method(spec)
    state = kit.taken(method, {"model": model_state()})
    saved = kit.save(method, state, None, method.config({}))
    assert saved.shown == kit.bits(saved.read.state()) == kit.bits(state.tensors)


@pytest.mark.parametrize("spec", METHODS)
def test_every_checkpoint_of_a_store_stands_alone(tmp_path, spec):
    store = CheckpointStore(tmp_path, method=spec)
    for step in range(3):
        assert store.save(step, small_state(step)).kind == "key"
    store.delete(0)
    for step in (1, 2):
        assert is_same(CheckpointStore(tmp_path).load(step), small_state(step))


def test_none_costs_what_the_tensors_do():
    method, state = resolve_method("none"), {"w": torch.randn(100, 7), "b": torch.zeros(9, dtype=torch.int64)}
    saved = kit.save(method, kit.Taken(state, kit.Hints()), None, method.config({}))
    payloads = {stream.name: stream.payload for stream in saved.streams if stream.name}
    assert payloads == {name: words_of(tensor).tobytes() for name, tensor in state.items()}


@pytest.mark.parametrize("level", [1, 19])
def test_frames_are_those_of_the_level(level):
    method, state = resolve_method({"name": "zstd", "level": level}), {"w": torch.arange(4000.0)}
    (frame,) = (
        stream.payload
        for stream in kit.save(method, kit.Taken(state, kit.Hints()), None, method.config({})).streams
        if stream.name == "w"
    )
    raw = state["w"].numpy().tobytes()
    assert zstandard.decompress(frame) == raw
    assert frame == zstandard.ZstdCompressor(level=level).compress(raw)


@pytest.mark.parametrize("level", [0, 23, 3.0, True, "3", None])
def test_levels_that_are_none(level):
    with pytest.raises(ConfigError, match="level"):
        resolve_method({"name": "zstd", "level": level})
