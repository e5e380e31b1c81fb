"""Two-bit gradients between the ranks of real jobs equal the step-by-step reference, bit for bit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dynaquant_core.state import matches
from tests.comm.products import BELOW, BY_NAME, SIZES, gradients
from tests.comm.ranks import STEPS
from tests.gloo import Found, play
from tests.reference.two_bit_steps import Sender, reduced, single

RANKS = "tests.comm.ranks"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    acts = "steps", "warmup", "accumulate", "unused", "strange", "scaled", "convolutions", "traffic"
    return play(RANKS, tmp_path_factory.mktemp("two"), 2, *acts, "restored", "refused", "sparse")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return play(RANKS, tmp_path_factory.mktemp("four"), 4, "steps", "served", "misled", store="tcp")


def senders(ranks, by_name=False):
    """Of each parameter: the reference's senders, one a rank."""
    found = {}
    for name, shape in SIZES.items():
        above = next(limit for pattern, limit in BY_NAME.items() if matches(name, [pattern]))
        limits = (above, BELOW) if by_name else (0.5,)
        found[name] = [Sender(math.prod(shape), *limits) for _ in range(ranks)]
    return found


def step_all(of, step_gradients, reduce, dtype=torch.float32):
    """What arrives at one step, by name; ``step_gradients`` has one mapping a rank."""
    arrived = {}
    for name, own in of.items():
        flat = [each[name].float().flatten().tolist() for each in step_gradients]
        totals = reduced(own, flat, reduce)
        arrived[name] = torch.tensor(totals).to(dtype).float().tolist()
        lost = [single(total - value) for total, value in zip(totals, arrived[name], strict=True)]
        for sender in own:
            sender.take_over(lost, single(1.0 if reduce == "mean" else 1.0 / len(own)))
    return arrived


def residuals(of, rank):
    return {name: own[rank].residual for name, own in of.items()}


@pytest.mark.parametrize(
    ("variant", "reduce", "by_name", "dtype"),
    [
        ("sum", "sum", False, torch.float32),
        ("mean", "mean", False, torch.float32),
        ("thresholds", "mean", True, torch.float32),
        ("one bucket of thresholds", "mean", True, torch.float32),
        ("views", "mean", False, torch.float32),
        ("half", "mean", False, torch.float16),
        ("bfloat16", "sum", False, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_equal_the_reference(ranks, variant, reduce, by_name, dtype, request):
    found = [record[variant] for record in request.getfixturevalue({2: "two", 4: "four"}[ranks])["steps"]]
    of = senders(ranks, by_name)
    for step in range(STEPS):
        expected = step_all(of, [gradients(rank, step, dtype) for rank in range(ranks)], reduce, dtype)
        for record in found:
            assert record["arrived"][step] == expected
    for rank, record in enumerate(found):
        assert record["held"] == residuals(of, rank)
        assert record["step"] == STEPS


def test_buckets_were_built_anew_and_unevenly(two):
    """The point of the small buckets above: residuals have moved from one layout into another."""
    for variant in ("mean", "thresholds", "views", "bfloat16"):
        layouts = two["steps"][0][variant]["layouts"]
        assert layouts[0] != layouts[-1]
        assert len(layouts[-1]) > 1
        assert sorted(itertools.chain(*layouts[-1])) == sorted(SIZES)


def test_warm_up_is_the_dense_all_reduce(two):
    of = senders(2)
    for step in (2, 3):
        step_all(of, [gradients(rank, step) for rank in range(2)], "mean")
    for rank, record in enumerate(two["warmup"]):
        assert record["as dense"] == [True, True, False, False]
        assert record["held"] == residuals(of, rank)
        assert record["step"] == 4


def test_warm_up_is_the_dense_all_reduce_of_three_ranks_too(tmp_path):
    """A third is no float32: to divide by three and to multiply by a third round otherwise."""
    for record in play(RANKS, tmp_path, 3, "warmup")["warmup"]:
        assert record["as dense"] == [True, True, False, False]


def test_accumulated_gradients_are_compressed_once(two):
    of = senders(2)
    arrived = []
    for step in range(3):
        parts = [[gradients(rank, 2 * step + part) for part in range(2)] for rank in range(2)]
        whole = [{name: first[name] + second[name] for name in SIZES} for first, second in parts]
        arrived.append(step_all(of, whole, "sum"))
    for rank, record in enumerate(two["accumulate"]):
        assert record["arrived"] == arrived
        assert record["held"] == residuals(of, rank)
        assert record["step"] == 3


def test_a_parameter_that_nobody_used_keeps_what_it_holds(two):
    """Of 1.3 a use, in halves: what arrived and is held sums up to what was given, at every step."""
    given = received = 0.0
    for step in range(6):
        given += 1.3 * (2, 1, 0)[step % 3]
        records = [found[step] for found in two["unused"]]
        assert records[0][0] == records[1][0]
        received += records[0][0]
        assert received + sum(held for _, held in records) == pytest.approx(given, abs=1e-5)
    assert [record[0] for record in two["unused"][0]] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]


def test_what_is_not_finite_is_seen_by_every_rank_and_held_by_none(two):
    for record in two["strange"]:
        bad = [step[0] for step in record["steps"]]
        assert [{name: count for name, count in step.items() if count} for step in bad] == [
            {"c": 1},
            {"e": 1},
            {},
        ]
        assert record["finite"]
    held = [[step[2] for step in record["steps"]] for record in two["strange"]]
    assert held[0] == pytest.approx([0.4, 0.3, 0.2])  # rank 0 goes on at that element
    assert held[1] == pytest.approx([0.0, 0.4, 0.3])  # rank 1 has left out what was no number


def test_a_step_that_the_scaler_skips_loses_nothing(two):
    """Weights have moved by all finite gradients but what is held; in the unit of the true gradients."""
    scales = two["scaled"][0]["scales"]
    assert scales[1] == 2.0**10
    assert scales[2] == 2.0**9  # skipped
    assert scales[-1] > scales[2]  # grown again, in between
    first, second = two["scaled"]
    assert first["weights"] == second["weights"]
    for name in SIZES:
        total = sum(gradients(rank, step)[name].double() for rank in range(2) for step in range(8)).flatten()
        if name == "d":
            total[0] -= gradients(1, 2)["d"].double()[0, 0]
        held = sum(torch.tensor(record["held"][name], dtype=torch.float64) for record in two["scaled"])
        moved = -torch.tensor(first["weights"][name], dtype=torch.float64)
        assert torch.allclose(moved + held, total, atol=1e-5)


def test_a_real_network_in_channels_last_loses_nothing(two):
    for record in two["convolutions"]:
        assert record["worst"] < 1e-5
        residual, weight = record["strides"]
        assert residual == weight


def test_a_rank_hands_in_sixteen_times_fewer_bytes(two):
    for record in two["traffic"]:
        assert record["dense"] == 256 * 128 * 4
        assert record["packed"] * 16 == record["dense"]
        assert record["state"] == record["packed"]


def test_a_state_moves_to_other_buckets(two):
    for rank, record in enumerate(two["restored"]):
        assert record["found"]["arrived"] == record["expected"]["arrived"]
        assert record["found"]["held"] == record["expected"]["held"]
        assert record["found"]["layouts"][-1] != record["expected"]["layouts"][-1]
        assert record["found"]["step"] == 6
        assert [name for name, _ in record["refused"]] == ["StateMismatchError"] * 4
        foreign, short, empty, nothing = (text for _, text in record["refused"])
        assert f"is of rank {1 - rank} of 2, this is rank {rank} of 2" in foreign
        assert "b is not in the checkpoint" in short
        assert "lacks rank" in empty == nothing
        assert record["untouched"]


def test_sparse_gradients_are_one_clear_error_at_the_first_step(two):
    for record in two["sparse"]:
        name, text = record["backward"]
        assert name == "UnsupportedStateError"
        assert "the gradient of '0.weight' is a torch.sparse_coo tensor" in text


def test_a_residual_goes_by_either_name_and_no_other(two):
    for record in two["sparse"]:
        assert record["residual"] == [1, 4]
        assert record["other"][0] == "ConfigError"
        assert "did you mean '1.weight'?" in record["other"][1]


def test_what_may_not_be_registered(two):
    for record in two["refused"]:
        name, text = record["rank 1 differs"]
        assert name == "StateMismatchError"
        assert "ranks [1]" in text
        for way in ("second", "second, by name"):
            name, text = record[way]
            assert name == "ConfigError"
            assert "two_bit_hook" in text
        assert set(record["still works"]) <= {-0.5, -0.25, 0.0, 0.25, 0.5}
        assert record["built in"][0] == "ConfigError"


def test_the_parameter_server_equals_the_reference(four):
    first, second, *servers = four["served"]
    assert servers == [{"rounds": STEPS}] * 2
    of = senders(2, by_name=True)
    assert first["arrived"][: STEPS - 1] == second["arrived"]
    for step in range(STEPS):
        own = [gradients(rank, step) for rank in range(2)]
        if step == 0:  # the warm-up
            dense = {name: ((own[0][name] + own[1][name]) / 2).flatten().tolist() for name in SIZES}
            assert first["arrived"][0] == dense
        elif step < STEPS - 1:
            assert first["arrived"][step] == step_all(of, own, "mean")
        else:  # rank 1 has closed
            alone = {name: [each[0]] for name, each in of.items()}
            assert first["arrived"][step] == step_all(alone, own[:1], "mean")
    for rank, record in enumerate((first, second)):
        assert record["held"] == residuals(of, rank)
        assert record["whose"] == [rank, 2, STEPS - rank]
        assert record["closed"][0] == "ConfigError"
        assert record["sparse"][0] == "UnsupportedStateError"
        assert "the gradient of 'c' is a torch.sparse_coo tensor" in record["sparse"][1]
    count = sum(math.prod(shape) for shape in SIZES.values())
    packed = second["pushed"] - 4 * count
    assert packed % (STEPS - 2) == 0
    assert count / 4 <= packed / (STEPS - 2) <= count / 4 + 4 * 5  # a word a run and shard at most


def test_a_worker_that_is_killed_ends_server_and_workers_in_one_clear_error(tmp_path):
    (worker, server) = play(RANKS, tmp_path, 3, "orphaned", store="tcp")["orphaned"]
    assert [name for name, _ in (worker, server)] == ["RankLostError"] * 2
    assert "rank 1 is gone" in server[1]
    assert "rank 2 is gone" in worker[1]
    assert all("newest common checkpoint" in text for _, text in (worker, server))


def test_roles_and_settings_that_do_not_fit(four):
    for rank, record in enumerate(four["misled"]):
        assert record.pop("disagree")[0] == "StateMismatchError"
        assert {name for name, _ in record.values()} == {"ConfigError"}
        assert ("server" in record) == (rank < 2)


def test_the_reference_rounds_as_float32_does():
    assert single(0.1) == torch.tensor(0.1).item()
    assert single(1e39) == math.inf
