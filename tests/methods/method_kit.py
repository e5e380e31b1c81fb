"""What every method must do, as checks of one method and a few of its points.

States are whole training states.  They are taken apart as a store does it, so a method sees the names, roles
and hints that it sees there, and only the tensors that it takes.
"""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods import Hints, Method, Space, Stream, TensorSpec
from dynaquant_core.methods.base import Rejoins
from dynaquant_core.state import words_of
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import prepare
from tests.methods.streams import StreamTable

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = {
    "wte.weight": (40, 32),
    "attn.qkv.weight": (96, 32),
    "conv.weight": (16, 8, 3, 3),
    "mlp.weight": (64, 64),
    "norm.weight": (32,),
}


# -- states --------------------------------------------------------------------------------------


def training_state(step: int, dtype: torch.dtype = torch.float32, shapes: Any = None) -> dict[str, Any]:
    """Weights that move a little each step, AdamW's moments, and what lies beside them."""
    shapes = SHAPES if shapes is None else shapes
    weights, moments = {}, {}
    for number, (name, shape) in enumerate(shapes.items()):
        draw = torch.Generator().manual_seed(number)
        spread = 0.02 * (1 + number)
        value = spread * torch.randn(shape, generator=draw)
        for _ in range(step):
            value = value + 0.05 * spread * torch.randn(shape, generator=draw)
        weights[name] = value.to(dtype)
        first = 1e-3 * torch.randn(shape, generator=draw)
        second = first**2 + 1e-8 * torch.rand(shape, generator=draw)
        moments[number] = {"step": torch.tensor(float(step)), "exp_avg": first, "exp_avg_sq": second}
    groups = [{"lr": 1e-3, "params": list(moments)}]
    return {"model": weights, "optimizer": {"state": moments, "param_groups": groups}}


@dataclass
class Taken:
    """What a store hands a method of one state."""

    tensors: dict[str, Tensor]
    hints: Hints


def taken(method: Method, state: Any) -> Taken:
    """The part of a state that the method takes; its tensors are the state's own memory."""
    prepared = prepare(Settings.of(method, "exact", ()), 1, state, gradients=None, model=None)
    return Taken(dict(prepared.division.tensors.get("weights", {})), prepared.hints)


def bits(state: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> list[tuple[str, TensorSpec, bytes]]:
    """Names in order, specs, and every bit, copied."""
    items = state.items() if isinstance(state, Mapping) else state
    return [(name, TensorSpec.of(tensor), words_of(tensor).tobytes()) for name, tensor in items]


@dataclass
class Saved:
    """One draft that was written and read again."""

    shown: list[Any]
    size: int
    streams: list[Stream]
    written: Any
    table: StreamTable
    read: Any


def save(method: Method, state: Taken, ref: Any, config: Any, reader: Any = None) -> Saved:
    """Drafts, sizes, encodes, decodes; ``reader`` is what the reader had before, where not ``ref``."""
    draft = method.draft(state.tensors, ref, config, state.hints)
    shown, size = bits(draft.decoded), draft.size
    streams, written = draft.encode()
    streams = list(streams)
    table = StreamTable(streams, state.tensors)
    return Saved(shown, size, streams, written, table, method.decode(table, reader or ref))


def delta(method: Method, config: Any) -> tuple[Saved, Saved]:
    """A key and a delta that stands on it."""
    key = save(method, taken(method, training_state(0)), None, config)
    return key, save(method, taken(method, training_state(1)), key.written, config, key.read)


# -- checks --------------------------------------------------------------------------------------


def check_chain(method: Method, configs: Sequence[Any], *, restores: bool) -> None:
    """Six checkpoints: a reader gets what each draft showed, and sizes are as announced."""
    written = read = None
    assert list(taken(method, training_state(0)).tensors), "the method takes none of these tensors"
    for step in range(6):
        state = taken(method, training_state(step))
        before = bits(state.tensors)
        saved = save(method, state, written, configs[step % len(configs)], read)
        assert saved.shown == bits(saved.read.state()) == bits(saved.read.items())
        assert [row[:2] for row in saved.shown] == [row[:2] for row in before]
        assert bits(state.tensors) == before, "the live tensors were changed"
        assert abs(saved.size - saved.table.nbytes) <= 0.02 * saved.table.nbytes + 64
        read = saved.read
        written = read if restores else saved.written


def check_rejoined(method: Method, config: Any, *, restored: bool) -> None:
    """A run that goes back to an older link, read from its file, writes what it would on what it held."""
    _, link = delta(method, config)
    if restored:  # the run began anew from the first delta
        link = save(method, taken(method, training_state(2)), link.read, config, link.read)
    newest = save(method, taken(method, training_state(3)), link.written, config, link.read)
    if isinstance(link.read, Rejoins):
        link.read.rejoin(newest.written)
    held, again = (
        save(method, taken(method, training_state(4)), base, config) for base in (link.written, link.read)
    )
    assert again.streams == held.streams
    assert again.shown == held.shown


def check_dtypes(method: Method, configs: Sequence[Any], dtype: torch.dtype) -> None:
    """Each dtype comes back as itself, finite and, within a spread of the values, where it was."""
    for config in configs:
        read = None
        for step in range(2):
            state = taken(method, training_state(step, dtype))
            saved = save(method, state, read, config)
            read = saved.read
            assert saved.shown == bits(read.state())
            for name, tensor in read.state().items():
                assert tensor.dtype == state.tensors[name].dtype
                assert torch.isfinite(tensor).all(), name


def check_exact(method: Method, exact: Any) -> None:
    """The point that keeps every bit does, in a key and in a delta, negative zeros and subnormals too."""
    for step, ref in ((0, None), (1, save(method, taken(method, training_state(0)), None, exact).read)):
        state = training_state(step)
        odd = torch.tensor([-0.0, 1e-45, -1e-39, 3e38])
        state["model"]["mlp.weight"].view(-1)[:4] = odd
        tensors = taken(method, state)
        assert bits(save(method, tensors, ref, exact).read.state()) == bits(tensors.tensors)


def check_space(method: Method) -> None:
    """Every point survives its data, and the last beyond gives back the very tensors."""
    for gradients in (False, True):
        space = method.space(gradients=gradients)
        for point in points(space):
            data = json.loads(json.dumps(point.as_dict()))
            assert method.config(data) == point
            assert hash(method.config(data)) == hash(point)
            assert type(point) is type(space.default)
    check_exact(method, space.beyond[-1])


def points(space: Space) -> Iterator[Any]:
    """Every point of a space."""
    axes = {**space.axes, **space.variants, **space.refine}
    for values in itertools.product(*axes.values()):
        yield space.build(**dict(zip(axes, values, strict=True)))
    yield from space.beyond
    yield space.default


def check_nothing(method: Method, config: Any) -> None:
    """A state without a tensor has a key, a delta and a reader."""
    key = save(method, Taken({}, Hints()), None, config)
    assert save(method, Taken({}, Hints()), key.read, config).read.state() == {}


def check_tiny(method: Method, configs: Sequence[Any]) -> None:
    """The smallest tensors, equal values, a lone giant; and in a delta tensors that did not move at all."""
    giant = torch.zeros(16, 16)
    giant[3, 5] = 1e30
    state = {
        "one": torch.randn(16, 16, generator=torch.Generator().manual_seed(0)),
        "zero": torch.zeros(16, 16),
        "level": torch.full((16, 16), -2.5),
        "minus": torch.full((16, 16), -0.0),
        "giant": giant,
        "vector": torch.ones(2),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
    }
    for config in configs:
        key = save(method, taken(method, {"model": state}), None, config)
        again = save(method, taken(method, {"model": state}), key.read, config)
        for saved in (key, again):
            assert saved.shown == bits(saved.read.state())
            assert all(bool(torch.isfinite(tensor).all()) for tensor in saved.read.state().values())


def check_wrong_bases(method: Method, saved: Saved, config: Any) -> None:
    """Against no base, or one of other shapes or names: a refusal, or, where none is needed, the same."""
    wide = {name: (*shape[:-1], shape[-1] * 2) for name, shape in SHAPES.items()}
    renamed = {f"other.{name}": shape for name, shape in SHAPES.items()}
    others = [taken(method, training_state(0, shapes=shapes)) for shapes in (wide, renamed)]
    for base in (None, *(save(method, other, None, config).read for other in others)):
        try:
            found = bits(method.decode(saved.table, base).state())
        except (CorruptFileError, MissingBaseError):
            continue
        assert found == saved.shown


def check_detached(method: Method, config: Any) -> None:
    """After `detach` nothing of the live tensors is held, looked at or needed."""
    key = save(method, taken(method, training_state(0)), None, config)
    for ref in (None, key.written):
        live = training_state(1)
        state = taken(method, live)
        shown = bits(method.draft(state.tensors, ref, config, state.hints).decoded)
        draft = method.draft(state.tensors, ref, config, state.hints)
        draft.detach()
        table = StreamTable([], state.tensors)
        for tensor in state.tensors.values():
            tensor.fill_(0.123)
        gone = [weakref.ref(tensor) for tensor in state.tensors.values()]
        state.hints.scratch.clear()  # as a store does
        del state, tensor, live
        if any(name() is not None for name in gone):
            gc.collect()
        assert [name() for name in gone] == [None] * len(gone), "a live tensor is still held"
        streams, written = draft.encode()
        table.rows = {(stream.name, stream.kind): (stream.codec, stream.payload) for stream in streams}
        assert bits(method.decode(table, ref).state()) == shown
        assert bits(written.items()) == shown


def check_readers_memory(saved: Saved) -> None:
    """Who writes into loaded tensors does not change what the next checkpoint stands on."""
    for tensor in [*saved.read.state().values(), *(tensor for _, tensor in saved.read.items())]:
        tensor.fill_(0.123)
    assert bits(saved.read.state()) == saved.shown


def check_names(method: Method, key: Saved, saved: Saved) -> None:
    """A few tensors along a chain are the same as of the whole."""
    for name in list(key.table.specs)[::2]:
        base = method.decode(key.table, None, [name])
        assert bits(base.state()) == [row for row in key.shown if row[0] == name]
        found = method.decode(saved.table, base, [name])
        assert bits(found.state()) == [row for row in saved.shown if row[0] == name]


def check_survives(method: Method, table: StreamTable, ref: Any) -> None:
    """Damaged streams: a refusal, or tensors of the right shapes."""
    try:
        state = method.decode(table, ref).state()
    except (CorruptFileError, MissingBaseError):
        return
    assert {name: TensorSpec.of(tensor) for name, tensor in state.items()} == table.specs
