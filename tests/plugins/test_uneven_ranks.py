"""Ranks that are late, that measure something else or hold something else keep the promise and the job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gloo import Found, play
from tests.plugins.uneven_ranks import LATE

RANKS = "tests.plugins.uneven_ranks"
ACTS = ("late", "zeros", "heavy", "ahead", "one_sided", "paged_out", "at_once", "anew")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return play(RANKS, tmp_path_factory.mktemp("uneven"), 2, *ACTS, store="tcp")


def column(saves: list[dict[str, Any]], name: str) -> list[Any]:
    return [save[name] for save in saves]


def test_nobody_measures_alone_where_the_ranks_have_not_come_together(found: Found) -> None:
    """What evaluate exchanges would meet what the other ranks exchange in training."""
    (*first, same), (*second, _) = (rank["saves"] for rank in found["late"])
    for rank in (first, second):
        assert column(rank, "calls") == column(rank, "shared")
        assert [calls > 0 for calls in column(rank, "calls")] == [True, False, True, True]
    assert column(first, "met") == [True, None, True, True]
    assert column(first, "exact") == [False, True, False, False]
    assert same == {"same": True}


def test_a_rank_that_comes_too_late_hears_so_at_once(found: Found) -> None:
    first, second = (rank["saves"][1]["seconds"] for rank in found["late"])
    assert second < first < LATE
    for rank in found["late"]:
        assert any("rank 1 of 2 did not answer" in line for line in rank["told"])


def test_ranks_of_which_one_alone_can_measure_hear_so_at_once(found: Found) -> None:
    told = "ConfigError: rank 0 of 2 was given an evaluate and rank 1 none: give every process the same"
    for rank in found["one_sided"]:
        searched, exact = column(rank["saves"], "heard")
        assert searched.startswith(told)
        assert exact is None


def test_values_that_say_nothing_settle_nothing(found: Found) -> None:
    """All is wrong on both, then all right; rank 1's examples are easier, and rank 0's count."""
    saves = found["zeros"][0]["saves"]
    assert column(saves, "met") == [None, True, True, True]  # nothing is measured where all is 0
    for save in saves:
        assert save["read"] >= 0.99 * save["live"]
    assert saves[-1]["live"] > 0.5
    assert sum("give every rank the same batches" in line for line in found["zeros"][0]["told"]) == 1


def test_large_buffers_are_lent_and_the_job_s_store_lives(found: Found) -> None:
    for number, rank in enumerate(found["heavy"]):
        *saves, book = rank["saves"]
        assert min(column(saves, "calls")) > 0
        assert book == {"book": number}
    assert column(found["heavy"][0]["saves"][:2], "met") == [True, True]
    assert not found["heavy"][0]["told"]


def test_every_rank_finds_what_was_saved_before_though_one_alone_writes(found: Found) -> None:
    for rank in found["at_once"]:
        assert column(rank["saves"], "number") == ["0", "1"]


def test_all_ranks_hear_together_that_a_save_has_failed_in_the_background(found: Found) -> None:
    """The others are not left in an exchange of gradients."""
    (first,), (second,) = (rank["saves"] for rank in found["ahead"])
    early, late = first["heard"]
    assert early == "nothing"
    assert late.startswith("a checkpoint could not be written in the background")
    assert second["heard"] == ["nothing", f"rank 0 of 2: SaveError: {late}"]


def test_a_rank_that_cannot_read_its_gradients_is_named_before_anybody_waits_for_it(found: Found) -> None:
    (first,), (second,) = (rank["saves"] for rank in found["paged_out"])
    assert first["heard"] == "SaveError: rank 1 of 2: OSError: the disk with the averages is gone"
    assert "the disk with the averages is gone" in second["heard"]


def test_processes_that_meet_in_a_new_group_begin_to_count_anew(found: Found) -> None:
    """Rank 0 has saved by itself before, so they had not counted alike, and waited at different places."""
    for rank in found["anew"]:
        assert rank["saves"] == [{"heard": None, "together": True}]
