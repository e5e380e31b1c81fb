"""What every codec must do: one table of codecs, one set of checks.

A new codec is admitted by a line in `CASES` and frozen bytes from tests/fixtures/make_codecs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynaquant_core.coding import codec_by_id
from dynaquant_core.coding.codec import MAX_LEVELS, Codec
from dynaquant_core.errors import CorruptFileError

FIXTURES = Path(__file__).parent / "fixtures" / "codecs"
SYMBOL_DTYPES = ("uint8", "uint16")
VALUE_DTYPES = (
    *("float64", "float32", "float16", "complex64", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Args:
        id: the codec's.
        symbols: it takes symbols only (else any dtype).
        context: "needs", "may" (its bytes depend on it) or "ignores".
        only: None, or what the values must be: "equal" to the context, of "one" value, or four "flags".
    """

    id: int
    symbols: bool = False
    context: str = "ignores"
    only: str | None = None

    @property
    def codec(self) -> Codec:
        return codec_by_id(self.id)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return SYMBOL_DTYPES if self.symbols else VALUE_DTYPES


CASES = {
    "raw": Case(0),
    "zstd": Case(1),
    "huffman": Case(2, symbols=True),
    "rle_huffman": Case(3, symbols=True),
    "rans": Case(4, symbols=True),
    "rans_context": Case(5, symbols=True, context="needs"),
    "planes": Case(6),
    "planes_xor": Case(7, context="needs"),
    "same": Case(8, context="needs", only="equal"),
    "constant": Case(9, only="one"),
    "paper": Case(10, symbols=True, context="may"),
    "lzma": Case(11),
    "flags": Case(12, symbols=True, context="needs", only="flags"),
}


# -- inputs --------------------------------------------------------------------------------------


def symbols(n, levels, dtype, moved=0.1, seed=0):
    """Codes and the codes before them: bell-shaped, most unchanged."""
    rng = np.random.default_rng(seed)
    before = np.clip(rng.normal(levels / 2, levels / 5, n), 0, levels - 1)
    now = np.clip(before + (rng.random(n) < moved) * rng.normal(0, 1 + levels / 10, n), 0, levels - 1)
    return now.astype(dtype), before.astype(dtype)


def floats(n, dtype, seed=0):
    """Weights and the weights before them, with what floats can hold besides numbers."""
    rng = np.random.default_rng(seed)
    before = rng.normal(0, 0.02, n)
    now = before + (rng.random(n) < 0.3) * rng.normal(0, 1e-3, n)
    now[: min(n, 6)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40][: min(n, 6)]
    return now.astype(dtype), before.astype(dtype)


def numbers(n, dtype, seed=0):
    """(values, context) of any dtype."""
    if np.dtype(dtype).kind == "f":
        return floats(n, dtype, seed)
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (2, n * np.dtype(dtype).itemsize), dtype=np.uint8)
    if dtype == "bool":
        data &= 1
    return data[0].view(dtype), data[1].view(dtype)


def inputs(case: Case) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """(what, values, context) over dtypes, sizes, alphabets."""
    for dtype in case.dtypes:
        for n in (0, 1, 3, 4, 7, 255, 3000):
            pair = symbols(n, 16, dtype) if case.symbols else numbers(n, dtype)
            yield from _with_contexts(case, f"{dtype}[{n}]", *pair)
        one = np.full(500, 7, dtype)
        yield from _with_contexts(
            case, f"{dtype} of one value", one, numbers(500, dtype)[1] if not case.symbols else one % 5
        )
    for levels in (2, 256, MAX_LEVELS):
        yield from _with_contexts(case, f"{levels} levels", *symbols(20_000, levels, "uint16"))
    rng = np.random.default_rng(1)
    yield from _with_contexts(case, "noise", *rng.integers(0, MAX_LEVELS, (2, 9000)).astype(np.uint16))
    yield from _with_contexts(
        case, "long runs", *np.repeat(rng.integers(0, 3, (2, 9)).astype(np.uint8), 5000, axis=1)
    )
    yield from _with_contexts(case, "many", *symbols(300_001, 18, "uint8", moved=0.001))


def _with_contexts(case, what, values, before):
    if case.only == "equal":
        before = values.copy()
    if case.only == "one" and values.size:
        values = np.full_like(values, values[0])
    if case.only == "flags":
        values, before = values & 15, before & 255
    if case.context != "ignores":
        yield f"{what}, context", values, before
    if case.context != "needs":
        yield what, values, None


# -- checks --------------------------------------------------------------------------------------


def decode(case: Case, payload, values, context):
    """Decodes into the middle of a larger array, whose ends must stay as they are."""
    guard = 64
    held = np.full((values.size + 2 * guard) * values.itemsize, 0xA5, np.uint8).view(values.dtype)
    out = held[guard : guard + values.size]
    before = None if context is None else context.copy()
    try:
        case.codec.decode(payload, out, context)
    finally:
        rims = np.concatenate([held[:guard], held[guard + values.size :]]).view(np.uint8)
        assert (rims == 0xA5).all(), "wrote outside the output"
        assert context is None or context.tobytes() == before.tobytes(), "changed the context"
    return out


def check_roundtrip(case: Case) -> None:
    for what, values, context in inputs(case):
        for given in (values, _frozen(values)):
            payload = case.codec.encode(given, context)
            assert isinstance(payload, bytes)
            assert decode(case, payload, values, context).tobytes() == values.tobytes(), what
        assert decode(case, memoryview(bytearray(payload)), values, context).tobytes() == values.tobytes()
        if values.size == 0:
            assert len(payload) <= values.itemsize


def _frozen(values):
    """The same values where they must not be written, as from a memory map."""
    values = values.copy()
    values.flags.writeable = False
    return values


def check_refuses_unsuitable(case: Case) -> None:
    """`encode` refuses what it cannot bring back, instead of storing something else."""
    values = np.arange(40, dtype=np.uint16)
    wrong = []
    if case.symbols:
        wrong += [
            (values.astype(np.float32), values),
            (values + MAX_LEVELS, values),
            (values[:, None], values),
        ]
    if case.context == "needs":
        wrong += [(values, None), (values, values[1:])]
    if case.only:
        wrong += [(values, values[::-1].copy())]
    for bad, context in wrong:
        try:
            payload = case.codec.encode(bad, context)
        except ValueError:
            continue
        raise AssertionError(f"encoded {bad.dtype}{bad.shape} as {payload[:20]!r}")


def check_hostile(case: Case, rounds: int = 400) -> None:
    """Damaged bytes: a refusal, or an array of the right shape whose symbols are in range."""
    rng = np.random.default_rng(3)
    sources = [
        symbols(n, levels, dtype, 0.2)
        for n, levels, dtype in ((40, 5, "uint8"), (5000, 18, "uint8"), (3000, 600, "uint16"))
    ]
    if not case.symbols:
        sources += [floats(700, "float32"), floats(90, "float16")]
    for values, before in sources:
        for _, now, context in _with_contexts(case, "", values, before):
            payload = case.codec.encode(now, context)
            for _ in range(rounds):
                _survives(case, _damage(payload, rng), now, context)
            others = (None, before[::-1].copy(), before[1:], (np.arange(now.size) % 3).astype(np.uint8))
            for context_of_another in others:
                _survives(case, payload, now, context_of_another)


def _damage(payload: bytes, rng) -> bytes:
    data = bytearray(payload)
    kind = rng.integers(0, 6)
    if kind == 0:
        return bytes(data[: rng.integers(0, len(data) + 1)])
    if kind == 1:
        return bytes(data) + rng.bytes(int(rng.integers(1, 9)))
    if kind == 2:
        return rng.bytes(int(rng.integers(0, 2 * len(data) + 8)))
    for _ in range(int(rng.integers(1, 4)) if data else 0):
        at = int(rng.integers(0, min(len(data), 24) if kind == 3 else len(data)))
        data[at] = int(rng.integers(0, 256)) if kind == 4 else data[at] ^ 1 << int(rng.integers(0, 8))
    return bytes(data)


def _survives(case, payload, values, context) -> None:
    try:
        out = decode(case, payload, values, context)
    except CorruptFileError:
        return
    assert out.shape == values.shape
    if case.symbols:
        assert int(out.max(initial=0)) < MAX_LEVELS


def check_threads(case: Case) -> None:
    """Eight threads at once get what one thread gets."""
    work = []
    for seed in range(8):
        now, before = (
            symbols(4000 + seed, 18, "uint8", seed=seed)
            if case.symbols
            else floats(2000 + seed, "float32", seed)
        )
        work += [(values, context) for _, values, context in _with_contexts(case, "", now, before)]

    def both_ways(item):
        values, context = item
        payload = case.codec.encode(values, context)
        return payload, decode(case, payload, values, context).tobytes()

    alone = [both_ways(item) for item in work]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            assert list(pool.map(both_ways, work)) == alone


def frozen_inputs(case: Case) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """What the frozen bytes were made of; stored beside them, so it may change for new ones."""
    pairs = {}
    if case.symbols:
        pairs["small"] = symbols(300, 6, "uint8", 0.3)
        pairs["delta"] = symbols(20_001, 18, "uint8", 0.05)
        pairs["wide"] = symbols(6000, MAX_LEVELS, "uint16", 0.2)
    else:
        pairs["float32"], pairs["float64"], pairs["float16"] = (
            floats(900, f"float{bits}") for bits in (32, 64, 16)
        )
        pairs["int64"] = numbers(50, "int64")
    found = {}
    for name, (now, before) in pairs.items():
        for what, values, context in _with_contexts(case, name, now, before):
            found[what.replace(", context", "_context")] = values, context
    return found


def check_frozen_bytes(name: str, case: Case) -> None:
    """Bytes that an earlier version wrote decode for ever; a missing fixture is a failure."""
    for what in frozen_inputs(case):
        path = FIXTURES / f"{name}-{what}.npz"
        assert path.is_file(), f"{path} is missing: restore it, or make it with tests/fixtures/make_codecs.py"
    for path in sorted(FIXTURES.glob(f"{name}-*.npz")):
        with np.load(path, allow_pickle=False) as stored:
            values, payload = stored["values"], stored["payload"].tobytes()
            context = stored.get("context")
        assert decode(case, payload, values, context).tobytes() == values.tobytes(), path.name
