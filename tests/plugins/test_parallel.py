"""A search shared by the ranks of a real job finds what one rank would have found alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynaquant_core import ConfigError
from dynaquant_core.errors import EvaluationError
from dynaquant_core.plugins.board import Board
from dynaquant_core.plugins.buffers import Buffers
from dynaquant_core.plugins.manner import Terms
from dynaquant_core.plugins.parallel import choose_together
from dynaquant_core.search import Manager
from dynaquant_core.training.choice import Chooser
from tests.gloo import Found, a_group_of_one, play
from tests.plugins.ranks import SHORT

RANKS = "tests.plugins.ranks"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("two")
    acts = ("shared", "raises", "leader_raises", "leader_hangs", "reduced", "often", "reduced_later", "exact")
    return play(RANKS, folder, 2, *acts, store="tcp")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("four")
    acts = ("shared", "hangs", "reduced", "apart", "wrapped", "diverged", "reduced_later")
    return play(RANKS, folder, 4, *acts)


@pytest.fixture(params=[2, 4])
def job(request: pytest.FixtureRequest) -> tuple[int, Found]:
    return request.param, request.getfixturevalue({2: "two", 4: "four"}[request.param])


def outcome(record: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same on all ranks, however it was found."""
    return {name: record[name] for name in ("config", "report", "error", "state", "decoded", "untouched")}


def same_as_alone(found: list[dict[str, Any]]) -> None:
    """On every rank and at every save: rank 0's lone search and the shared one agree."""
    for save, leader in enumerate(found[0]["saves"]):
        for rank in found:
            assert outcome(rank["saves"][save]["together"]) == outcome(leader["alone"])
        assert leader["alone"]["untouched"]
        assert leader["alone"]["error"] is None


def test_the_choice_is_the_lone_search_s_on_every_rank(job: tuple[int, Found]) -> None:
    _, found = job
    same_as_alone(found["shared"])


def test_the_first_search_takes_each_rank_fewer_measurements(job: tuple[int, Found]) -> None:
    ranks, found = job
    records = [rank["saves"][0] for rank in found["shared"]]
    most = max(record["together"]["calls"] for record in records)
    assert most <= records[0]["alone"]["calls"] * {2: 0.8, 4: 0.7}[ranks]


def one_round_in_steady_state(found: list[dict[str, Any]]) -> None:
    """Where a lone search measures the reference and one candidate, no rank measures more than one thing."""
    steady = [number for number, save in enumerate(found[0]["saves"]) if save["alone"]["calls"] == 2]
    assert len(steady) > 2
    for number in steady:
        assert max(rank["saves"][number]["together"]["calls"] for rank in found) == 1


def test_in_steady_state_a_round_holds_the_reference_and_the_last_best(job: tuple[int, Found]) -> None:
    one_round_in_steady_state(job[1]["shared"])


def test_searches_leave_no_notes_behind_but_the_last_ones(two: Found) -> None:
    """The store lies in rank 0's memory, for as long as the job lives."""
    notes = two["often"][0]["saves"]
    assert len(notes) == 20
    assert max(notes[10:]) <= max(notes[:10])


@pytest.mark.slow
def test_eight_ranks_choose_as_one_and_in_one_round(tmp_path: Path) -> None:
    found = play(RANKS, tmp_path, 8, "many")["many"]
    same_as_alone(found)
    one_round_in_steady_state(found)
    lone = found[0]["saves"][0]["alone"]["calls"]
    assert max(rank["saves"][0]["together"]["calls"] for rank in found) <= 2 / 3 * lone


def test_an_evaluate_with_collectives_has_all_ranks_measure_the_same(job: tuple[int, Found]) -> None:
    _, found = job
    same_as_alone(found["reduced"])
    for save in range(2):
        calls = {rank["saves"][save]["together"]["calls"] for rank in found["reduced"]}
        assert calls == {found["reduced"][0]["saves"][save]["alone"]["calls"]}
    assert any("collectives" in line for line in found["reduced"][0]["told"])


def test_an_evaluate_that_begins_to_use_collectives_late_is_noticed(job: tuple[int, Found]) -> None:
    """What was measured apart in that round, the reference beside a candidate, is dropped."""
    found = job[1]["reduced_later"]
    same_as_alone(found)
    last = found[0]["saves"][-1]
    assert last["together"]["calls"] == last["alone"]["calls"] + 1
    assert sum("collectives" in line for line in found[0]["told"]) == 1


def test_ranks_that_measure_the_same_again_are_still_compared() -> None:
    def answer(value: float) -> dict[str, Any]:
        return {"values": [value], "lost": None, "collective": False}

    terms = Terms(manner="apart")
    terms.compare([answer(1.0), answer(2.0), answer(1.0)], 2, 0.01)
    assert terms.manner == "apart"
    terms.compare([answer(1.0), answer(2.0), answer(1.1)], 2, 0.01)
    assert terms.manner == "unison"


def test_a_wrapped_model_that_sends_its_buffers_around_is_noticed(four: Found) -> None:
    same_as_alone(four["wrapped"])


def test_values_of_a_rank_s_own_are_not_mixed(four: Found) -> None:
    same_as_alone(four["apart"])
    assert sum("give every rank the same batches" in line for line in four["apart"][0]["told"]) == 1


def test_a_buffer_that_is_conjugated_by_a_flag_alone_is_lent_too() -> None:
    mine, theirs = nn.Module(), nn.Module()
    mine.register_buffer("filter", torch.tensor([1 + 2j]).conj())
    theirs.register_buffer("filter", torch.tensor([3 + 4j]).conj())
    follower, leader = Buffers([mine]), Buffers([theirs])
    follower.borrow(leader.values(follower.differing(leader.digests())))
    assert mine.filter.tolist() == [3 - 4j]
    follower.give_back()
    assert mine.filter.tolist() == [1 - 2j]


def test_a_model_that_diverged_gives_the_lone_search_s_error(four: Found) -> None:
    records = [rank["saves"][0] for rank in four["diverged"]]
    assert {record["together"]["error"] for record in records} == {records[0]["alone"]["error"]}
    assert "not finite" in records[0]["alone"]["error"]


@pytest.mark.parametrize(("act", "who"), [("raises", 1), ("leader_raises", 0)])
def test_a_rank_that_fails_is_named_on_all(two: Found, act: str, who: int) -> None:
    for rank in two[act]:
        record = rank["saves"][0]["together"]
        assert f"rank {who} of 2" in record["error"]
        assert "the disk with the images is gone" in record["error"]
        assert record["config"]["scale"] == "exact"
        assert record["untouched"]


def test_a_rank_that_is_silent_is_named_within_the_deadline(four: Found) -> None:
    for number, rank in enumerate(four["hangs"]):
        record = rank["saves"][0]["together"]
        assert "rank 3 of 4 did not answer" in record["error"]
        assert record["config"]["scale"] == "exact"
        assert record["untouched"]
        assert (record["seconds"] > 2 * SHORT) == (number == 3)  # the others did not wait for it to wake


def test_a_leader_that_is_silent_is_named(two: Found) -> None:
    leader, follower = (rank["saves"][0]["together"] for rank in two["leader_hangs"])
    assert "rank 0 of 2 did not answer" in follower["error"]
    assert follower["seconds"] < 2 * SHORT < leader["seconds"]


def test_what_is_measured_is_stored_after_a_rank_gave_a_save_up_that_was_made(tmp_path: Path) -> None:
    """It holds another base than the writer from then on, so the next save builds on neither."""
    leader, _ = play(RANKS, tmp_path, 2, "gives_up", store="tcp")["gives_up"]
    kinds, measured, stored = zip(*leader["saves"], strict=True)
    assert measured == stored
    assert kinds == ("key", "delta", "delta", "delta", "key")


def test_a_checkpoint_that_keeps_every_bit_is_a_delta_as_with_one_rank(two: Found) -> None:
    assert two["exact"][0]["saves"] == ["key", "delta"]


def test_after_a_failure_the_next_search_works(job: tuple[int, Found]) -> None:
    """In the same processes."""
    ranks, found = job
    order = list(found)
    assert order.index({2: "leader_hangs", 4: "hangs"}[ranks]) < order.index("reduced")
    same_as_alone(found["reduced"])


@pytest.mark.parametrize(("act", "store"), [("dies", "file"), ("leader_dies", "tcp")])
def test_a_rank_that_dies_is_named(act: str, store: str, tmp_path: Path) -> None:
    found = play(RANKS, tmp_path, 2, act, store=store)[act]
    assert len(found) == 1
    who = 0 if act == "leader_dies" else 1
    for rank in found:
        assert f"rank {who}" in rank["saves"][0]["together"]["error"]


def test_a_store_that_fails_is_not_said_to_be_another_rank_s_end(tmp_path: Path) -> None:
    with a_group_of_one(tmp_path):
        board, file = Board("a", 1.0), tmp_path / "rendezvous"
        file.rename(tmp_path / "kept")
        file.mkdir()
        with pytest.raises(
            EvaluationError, match=r"rank 0 of 1 cannot use .* store any more \(Is a directory"
        ):
            board.post("note", {})
        file.rmdir()
        (tmp_path / "kept").rename(file)


def test_without_a_job_the_search_is_the_lone_one() -> None:
    class Saving:
        step = 1

    calls = []

    class Recorder(Chooser):
        def choose(self, saving: Any, *arguments: Any) -> Any:
            calls.append((saving, arguments))

    saving = Saving()
    choose_together(Recorder(None, Manager()), saving, 10.0)  # type: ignore[arg-type]
    assert calls == [(saving, ())]


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf"), "soon"])
def test_a_deadline_has_to_be_a_number_of_seconds(deadline: Any) -> None:
    with pytest.raises(ConfigError, match="deadline"):
        choose_together(Chooser(None, Manager()), None, deadline)  # type: ignore[arg-type]
