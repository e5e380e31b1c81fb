"""A checkpoint a rank rounds weights in its own way: ranks that go on from such are alike, or say so."""

from __future__ import annotations

import pytest

from tests.comm.rounded_life import STEPS
from tests.gloo import play


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounded")
    return play("tests.comm.rounded_life", folder, 2, "together", "apart", "moments", store="tcp")


def test_as_documented_ranks_are_alike_from_the_first_step_after_a_restore(told):
    for first, second in told["together"]:
        assert (first["start"], second["start"]) == (0, STEPS)
        assert first["apart"] == second["apart"] == [0.0, 0.0]
    assert told["together"][0][1]["held"] != told["together"][1][1]["held"]  # residuals stay each rank's own
    assert all(rank[1]["held"] > 0 for rank in told["together"])


def test_other_weights_are_one_error_on_all_ranks_before_anything_is_stepped(told):
    for first, second in told["apart"]:
        assert "refused" not in first
        assert second["apart"][0] == second["apart"][1] > 0
        steps, said = second["refused"]
        assert steps == 0
        assert said.startswith("comm: ranks [1] hold other weights than rank 0 at step")
        assert "from_first_rank" in said


def test_other_moments_are_that_error_one_step_later(told):
    for _, second in told["moments"]:
        steps, said = second["refused"]
        assert steps == 1
        assert "hold other weights than rank 0" in said


def test_workers_of_a_parameter_server_compare_too(tmp_path):
    """Nobody broadcasts weights there, as DDP does when it wraps a model."""
    first, second, server = play("tests.comm.ranks", tmp_path, 3, "unlike", store="tcp")["unlike"]
    assert first["weights"] == second["weights"]
    assert first["weights"][0] == "StateMismatchError"
    assert "hold other weights (here step 0)" in first["weights"][1]
    assert "have done other numbers of steps (here step 0)" in first["steps"][1]
    assert "have done other numbers of steps (here step 1)" in second["steps"][1]
    assert first["alike"] is second["alike"] is None
    assert first["alike, weight"] == second["alike, weight"]
    assert server == [0, 0, 3]
