"""LC-Checkpoint: tracked changes, stages, cached tables, merged links, and streams that are refused."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch

from dynaquant_core.errors import ConfigError, CorruptFileError, DynaQuantError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lc import Lc, LcConfig
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.exponent import stage_bits
from dynaquant_core.store import CheckpointStore
from tests.methods.conftest import layers, trained
from tests.methods.memory import Memory
from tests.methods.streams import assert_same, store

LC = Lc()
STAGES = ("EPH", "EP", "EH", "E")
THREE = LcConfig(bits=3)


def written(method, states, config):
    """Each state's table of streams, and what a reader holds after each."""
    tables, held, ref = [], [], None
    for state in states:
        _, _, ref, table = store(method, state, ref, config)
        tables.append(table)
        held.append(ref)
    return tables, held


def payload(table, name, kind):
    return table.rows[name, kind][1]


def test_a_key_keeps_everything_and_a_delta_is_of_what_a_reader_holds(chain):
    _, held = written(LC, chain, THREE)
    assert_same(held[0].state(), chain[0])
    for name in chain[0]:
        error = [
            (ref.state()[name] - state[name]).abs().mean() for ref, state in zip(held, chain, strict=True)
        ]
        walked = (chain[-1][name] - chain[0][name]).abs().mean()
        assert all(found < 0.6 * walked for found in error), "errors are coded again, so they do not add up"


def test_what_was_lost_comes_again():
    state = {"w.weight": torch.randn(64, 64)}
    _, _, ref, _ = store(LC, state, None, THREE)
    goal = trained(state, 0.3)
    errors = []
    for _ in range(8):
        _, _, ref, _ = store(LC, goal, ref, LcConfig(bits=2))
        errors.append(float((ref.state()["w.weight"] - goal["w.weight"]).abs().max()))
    assert all(after < before for before, after in pairwise(errors))
    assert errors[-1] < 0.2 * errors[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_approximation_has_the_tensors_dtype(dtype):
    state, ref = layers(dtype=dtype), None
    for seed in range(3):
        seen, held, ref, _ = store(LC, state, ref, LcConfig(bits=8))
        assert_same(seen, ref.state())
        assert_same(held.state(), ref.state())
        if seed:
            assert all(own.values.dtype == dtype for own in ref.tensors.values())
        state = trained(state, seed=seed)


def test_the_first_stage_alone_takes_what_the_paper_says():
    """Sec. 3: n ceil(log2 k) + k b bits; ours pads the codes to bytes and says how many steps there are."""
    method = Lc(stages="E")
    change = torch.zeros(20, 50)
    change.view(-1)[:400] = torch.tensor([0.5, -0.5, 0.0625, 2.0]).repeat(100)
    _, _, ref, _ = store(method, {"w": torch.zeros(20, 50)}, None, LcConfig())
    _, _, _, table = store(method, {"w": change}, ref, LcConfig())
    bits = 8 * (len(payload(table, "w", "buckets")) - 1 + len(payload(table, "w", "packed")))
    assert bits == stage_bits(1000, 32, 5) == 3160


def test_each_stage_saves_bytes(chain):
    sizes = {}
    for stages in STAGES:
        tables, _ = written(Lc(stages=stages), chain[:3], THREE)
        sizes[stages] = tables[-1].nbytes
    assert sizes["EPH"] < sizes["EP"] < sizes["E"]
    assert sizes["EPH"] < sizes["EH"] < sizes["E"]


def test_stages_do_not_change_what_promotion_keeps(chain):
    for left, right in (("EPH", "EP"), ("EH", "E")):
        ours, theirs = (written(Lc(stages=stages), chain, THREE)[1][-1] for stages in (left, right))
        assert_same(ours.state(), theirs.state())


def test_fewer_bits_are_fewer_bytes(chain):
    sizes = [written(LC, chain[:2], LcConfig(bits=bits))[0][1].nbytes for bits in (8, 5, 3, 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.75 * sizes[0]


def test_more_than_256_buckets_come_back():
    """All exponents of float32 at once, in every combination of stages that promotes them all."""
    patterns = torch.arange(0, 2**16, 8, dtype=torch.int64).to(torch.int32) << 16
    values = torch.nan_to_num(patterns.view(torch.float32), 0.0, 0.0, 0.0).reshape(64, 128)
    for stages in ("EH", "E"):
        method = Lc(stages=stages)
        _, _, ref, _ = store(method, {"w": torch.zeros(64, 128)}, None, LcConfig())
        seen, _, read, table = store(method, {"w": values}, ref, LcConfig())
        assert len(payload(table, "w", "buckets")) > 4 * 256
        assert_same(seen, read.state())


def test_a_tensor_that_did_not_move_costs_its_bucket(chain):
    _, held = written(LC, chain[:2], THREE)
    _, _, _, table = store(LC, held[-1].state(), held[-1], THREE)
    assert {kind for _, kind in table.rows} == {"layout", "buckets"}
    assert table.nbytes < 8 * len(chain[0]) + 16


# -- tables --------------------------------------------------------------------------------------


def brought(tables):
    """Tables that each checkpoint brings."""
    return [sum(kind == "tables" for _, kind in table.rows) for table in tables]


def test_a_table_is_written_once_and_used_while_it_fits(chain):
    tables, held = written(LC, chain, THREE)
    assert brought(tables)[:2] == [0, len(chain[0])]
    assert sum(brought(tables)[2:]) < len(chain[0]), "four more checkpoints of the same kind"
    for own in held[-1].tensors.values():
        assert all(lengths.size == size for size, lengths in own.tables.items())


def test_a_table_that_fits_no_more_is_replaced():
    start = {"w.weight": torch.zeros(64, 64)}
    rare, even = torch.zeros(64, 64), torch.zeros(64, 64)
    rare.view(-1)[:7] = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 0.125])
    even.view(-1)[:3584] = rare.view(-1)[:7].repeat(512)
    tables, held = written(LC, [start, {"w.weight": rare}, {"w.weight": rare + even}], THREE)
    assert brought(tables) == [0, 1, 1]
    assert held[1].tensors["w.weight"].tables[8].tolist() != held[2].tensors["w.weight"].tables[8].tolist()


def test_tensors_are_read_alone_along_a_chain(chain):
    tables, held = written(LC, chain, THREE)
    for name in chain[0]:
        alone = None
        for table, whole in zip(tables, held, strict=True):
            alone = LC.decode(table, alone, [name])
            assert_same({name: whole.state()[name]}, alone.state())


# -- one link for several ------------------------------------------------------------------------


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("bits", [2, 8])
def test_a_merged_link_stands_for_all_of_them(chain, stages, bits):
    method = Lc(stages=stages)
    tables, held = written(method, chain, LcConfig(bits=bits))
    table = Memory(chain[0], method.merge(tables[1:4], held[0]))
    read = method.decode(table, held[0])
    assert_same(read.state(), held[3].state())
    for later, expected in zip(tables[4:], held[4:], strict=True):
        read = method.decode(later, read)
        assert_same(read.state(), expected.state())


def test_a_super_step_of_two_bit_links_is_smaller_than_its_parts_and_merges_again(chain):
    tables, held = written(LC, chain, LcConfig(bits=2))
    parts = sum(table.nbytes for table in tables[1:4])
    first = Memory(chain[0], LC.merge(tables[1:4], held[0]))
    assert first.nbytes < parts
    again = Memory(chain[0], LC.merge([first, *tables[4:]], held[0]))
    assert_same(LC.decode(again, held[0]).state(), held[-1].state())


def test_a_super_step_over_an_exact_checkpoint_keeps_it_whole(chain):
    _, _, first, _ = store(LC, chain[0], None, THREE)
    _, _, second, exact = store(LC, chain[1], first, LcConfig(bits="exact"))
    _, _, third, delta = store(LC, chain[2], second, THREE)
    assert all(isinstance(own, Plain) for own in second.tensors.values())
    joined = Memory(chain[0], LC.merge([exact, delta], first))
    assert_same(LC.decode(joined, first).state(), third.state())
    with pytest.raises(ConfigError, match="no link to merge"):
        LC.merge([], first)
    with pytest.raises(MissingBaseError):
        LC.merge([delta], LC.decode(Memory({}, LC.draft({}, None, THREE, Hints()).encode()[0]), None))


def test_a_chain_can_be_cut_anywhere(chain):
    tables, held = written(LC, chain, THREE)
    for cut in range(1, len(chain)):
        read = LC.decode(Memory(chain[0], LC.rekey(held[cut])), None)
        for later, expected in zip(tables[cut + 1 :], held[cut + 1 :], strict=True):
            read = LC.decode(later, read)
            assert_same(read.state(), expected.state())


def test_a_store_shortens_a_chain_and_its_deltas_stay_deltas(tmp_path, chain):
    with CheckpointStore(tmp_path, method="lc", max_chain=20) as made:
        for step, state in enumerate(chain):
            made.save(step, state, config=THREE)
        before = {step: made.load(step) for step in made.steps()}
        assert [made.info(step).kind for step in made.steps()] == ["key"] + ["delta"] * 5
    with CheckpointStore(tmp_path, method="lc", max_chain=20, keep_last=3) as made:
        made.compact()
        assert {step: made.info(step).kind for step in made.steps()} == {3: "key", 4: "delta", 5: "delta"}
        assert {made.info(step).method for step in made.steps()} == {"lc"}
        for step in made.steps():
            assert_same(before[step], made.load(step))


# -- what is refused -----------------------------------------------------------------------------


def test_points_and_options_are_checked():
    for bits in (1, 9, 2.5, True, "bf16", None):
        with pytest.raises(ConfigError, match="LcConfig: bits"):
            LcConfig(bits=bits)
    with pytest.raises(ConfigError, match="did you mean 'bits'"):
        LcConfig.from_dict({"bit": 3})
    with pytest.raises(ConfigError, match="stages"):
        Lc(stages="PH")
    for links in (1, -2, 256, True, 2.0, None):
        with pytest.raises(ConfigError, match="super_step must be 0 or a whole number from 2 to 255"):
            Lc(super_step=links)
    assert Lc(super_step=4).options() == Lc().options() == {"stages": "EPH"}, (
        "a chain goes on when it changes"
    )
    assert Lc().space(gradients=False).axes == {"bits": (8, 7, 6, 5, 4, 3, 2)}
    assert Lc(stages="EH").space(gradients=False).axes == {"bits": (8,)}


def test_a_change_without_its_base_or_its_table_is_refused(chain):
    tables, held = written(LC, chain[:3], THREE)
    with pytest.raises(MissingBaseError, match="no base holds it"):
        LC.decode(tables[1], None)
    assert brought(tables)[2] < len(chain[0]), "a table is used again"
    with pytest.raises(CorruptFileError, match="under a table for 8 that is not held"):
        LC.decode(tables[2], held[0])


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("buckets", (0, b""), "0 bytes"),
        ("buckets", (0, b"\x01abc"), "4 bytes"),
        ("buckets", (0, b"\x00" + bytes(32)), "for 0 steps"),
        ("buckets", (0, b"\x01" + bytes(4 * 1025)), "4101 bytes"),
        ("buckets", (0, b"\x01" + np.float32([np.inf] * 8).tobytes()), "not finite"),
        ("buckets", (1, b"\x01" + bytes(32)), "codec id 1"),
        ("tables", (0, b"a"), "ends inside its tables"),
        ("codes", (0, b""), "ends"),
        ("codes", (0, bytes(9)), "do not end where announced"),
    ],
)
def test_damaged_streams_are_refused(chain, kind, row, words):
    _, _, base, _ = store(LC, chain[0], None, THREE)
    draft = LC.draft(chain[1], base, THREE, Hints())
    table = Memory(chain[1], draft.encode()[0]).with_row(("wte.weight", kind), *row)
    with pytest.raises(CorruptFileError, match=words):
        LC.decode(table, base)


def test_packed_codes_of_no_bucket_or_of_another_length_are_refused(chain):
    method = Lc(stages="EP")
    _, _, base, _ = store(method, chain[0], None, LcConfig(bits=2))
    table = Memory(chain[1], method.draft(chain[1], base, LcConfig(bits=2), Hints()).encode()[0])
    key = "wte.weight", "packed"
    size = len(table.rows[key][1])
    three = table.with_row(("wte.weight", "buckets"), 0, b"\x01" + bytes(12))
    with pytest.raises(CorruptFileError, match="A code is 3, there are 3 buckets"):
        method.decode(three.with_row(key, 0, b"\xff" * size), base)
    with pytest.raises(CorruptFileError, match="were given in"):
        method.decode(table.with_row(key, 0, bytes(size - 1)), base)


def test_random_damage_gives_the_right_shapes_or_an_error(chain):
    draw = random.Random(5)
    _, _, base, _ = store(LC, chain[0], None, THREE)
    table = Memory(chain[1], LC.draft(chain[1], base, THREE, Hints()).encode()[0])
    for _ in range(300):
        key = draw.choice(sorted(table.rows))
        codec, data = table.rows[key]
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with suppress(DynaQuantError):
            found = LC.decode(table.with_row(key, codec, bytes(damaged)), base).state()
            assert all(found[name].shape == tensor.shape for name, tensor in chain[1].items())
