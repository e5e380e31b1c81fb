"""Two gloo ranks under DDP: each packs its own maps, and what they share is rounded alike."""

import pytest

from tests.gloo import play


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of two ranks said."""
    acts = "ddp module one all later seeds seed reseeded join"
    return play("tests.memory.smaq_ranks", tmp_path_factory.mktemp("ranks"), 2, *acts.split())


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


@pytest.mark.parametrize("which", ["later", "seeds", "reseeded"])
def test_other_draws_in_the_midst_of_training_are_an_error_on_all_before_anything_is_coded(told, which):
    first, second = told[which]
    assert first == second
    assert "the ranks draw from different random streams" in first["said"]
    assert first["untouched"]


def test_ranks_that_are_reseeded_alike_round_alike(told):
    first, second = told["seed"]
    assert first == second
    assert first["said"] is None


def test_a_rank_without_data_joins_the_others(told):
    """It takes no optimizer steps: who waits for it in one waits for ever."""
    first, second = told["join"]
    assert first == second
    assert first["steps"] == 3
