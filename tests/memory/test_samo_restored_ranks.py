"""Ranks under SAMO that have not restored the same say so on all of them, before anything is averaged."""

from __future__ import annotations

import pytest

from tests.gloo import play

WRONG = {
    "first": "weights, optimizer states",
    "steps": "weights, optimizer states",
    "masks": "masks, weights, optimizer states",
    "moments": "optimizer states",
    "later first": "weights, optimizer states",
    "later masks": "masks, weights, optimizer states",
    "later weights": "weights",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    acts = *WRONG, "shared", "nothing"
    return play("tests.memory.samo_restored_ranks", tmp_path_factory.mktemp("ranks"), 2, *acts, store="tcp")


@pytest.mark.parametrize("act", WRONG)
def test_other_restores_are_one_error_on_all_ranks(told, act):
    first, second = told[act]
    assert first["said"] == second["said"]
    assert f"different {WRONG[act]};" in first["said"]
    assert "restore the same checkpoint" in first["said"]


@pytest.mark.parametrize("act", WRONG)
def test_ranks_go_on_together_once_all_have_restored_the_same(told, act):
    assert [one["at last"] for one in told[act]] == [0.0, 0.0]


@pytest.mark.parametrize("act", ["shared", "nothing"])
def test_ranks_that_are_alike_train_on(told, act):
    assert told[act] == [{"said": None, "at last": 0.0}] * 2
