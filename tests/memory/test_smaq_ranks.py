"""Two gloo ranks under DDP: each packs its own maps, and what they share is rounded alike."""

import pytest

from tests.gloo import play


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of two ranks said."""
    return play("tests.memory.smaq_ranks", tmp_path_factory.mktemp("ranks"), 2, "ddp", "module", "one", "all")


@pytest.mark.parametrize("which", ["ddp", "module"])
def test_ranks_stay_equal_while_each_packs_its_own_maps(told, which):
    first, second = told[which]
    assert first["digest"] == second["digest"], "weights and moments, bit for bit"
    assert first["losses"] != second["losses"], "they had other batches"
    for one in (first, second):
        assert one["levels"] <= 32 + 128 + 1
        assert one["benefit"] > 4
        assert one["roles"] == ["gradient", "gradient map", "saved", "state", "weight"]
        assert one["losses"][-1] < one["losses"][0]


def test_a_handle_that_one_rank_alone_has_restored_is_an_error_on_all_before_anything_is_coded(told):
    first, second = told["one"]
    assert first == second
    assert "the ranks draw from different random streams" in first["said"]
    assert first["steps"] == 0


def test_ranks_that_have_restored_alike_round_alike(told):
    first, second = told["all"]
    assert first == second
    assert first["said"] is None
