"""Two-bit gradients where models, optimizers and scalers are not one of each."""

from __future__ import annotations

import pytest

from tests.gloo import Found, play

RANKS = "tests.comm.odd_ranks"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    acts = "two_optimizers two_models scaler_of_one stale rounded copied frozen_between ignored steps_apart"
    more = "static idle joined let_go first_rank first_rank_of_copies first_rank_of_marked"
    return play(RANKS, tmp_path_factory.mktemp("two"), 2, *acts.split(), *more.split())


@pytest.mark.parametrize("fused", ["False", "True", "looked at"])
def test_a_scaler_that_skips_one_optimizer_takes_back_nothing_of_the_other(two, fused):
    """Weights have moved by what was given less what is held, for each parameter apart."""
    records = [record[fused] for record in two["two_optimizers"]]
    moved = {name: -records[0][name][0] for name in "ab"}
    held = {name: sum(record[name][1] for record in records) for name in "ab"}
    assert moved["a"] + held["a"] == pytest.approx(0.7 * 2 * 4)
    assert moved["b"] + held["b"] == pytest.approx(0.7 * (2 * 4 - 1))  # the infinite one was never given


def test_a_step_that_is_skipped_for_another_model_is_taken_back(two):
    moved = -two["two_models"][0][0]
    held = sum(record[1] for record in two["two_models"])
    assert moved + held == pytest.approx(0.7 * 2 * 3)


@pytest.mark.parametrize("used", ["both", "in turns", "at first"])
def test_ranks_with_less_data_join_and_nothing_is_lost(two, used):
    """What the rank that went on to the end received, and what both hold, is what both gave."""
    given, received, held = zip(*(record[used] for record in two["joined"]), strict=True)
    for place in (0, 1):
        everything = sum(own[place] for own in given)
        assert received[1][place] + sum(own[place] for own in held) == pytest.approx(everything, abs=1e-5)


def test_a_rank_that_has_run_out_of_data_is_not_compared_and_the_others_are(tmp_path):
    """It takes no steps, so its weights stay behind until `join` ends."""
    found = play(RANKS, tmp_path, 3, "run_out")["run_out"]
    assert [record["alike"] for record in found] == [[None, 0], [None, 3], [None, 3]]
    for refused, taken in (record["apart"] for record in found):
        assert refused[0] == "StateMismatchError"
        assert "ranks [2] hold other weights than rank 1" in refused[1]
        assert taken == 0


def test_a_scaler_on_one_rank_alone_is_refused_on_all(two):
    for name, text in two["scaler_of_one"]:
        assert name == "StateMismatchError"
        assert "a scaler or none" in text


@pytest.mark.parametrize("way", ["frozen", "unused", "asked for"])
def test_a_gradient_that_was_left_over_is_not_sent(two, way):
    for record in two["stale"]:
        assert record[way] == pytest.approx([0.8] * 4)


@pytest.mark.parametrize("way", ["views", "scaled"])
def test_what_no_rank_uses_keeps_what_is_held_and_stays_where_it_is(two, way):
    for record in two["idle"]:
        first, *others = record[way]
        assert first == [2.5, -2.0]
        assert others == [first] * 3


def test_half_precision_loses_nothing_either(two):
    """Without the share that each rank takes over, a threshold of 0.1 loses 1e-3 of all in bfloat16."""
    for record in two["rounded"]:
        assert len(record) == 4
        assert all(abs(share) < 2e-6 for share in record.values()), record


def test_models_can_be_copied_and_pickled_and_their_copies_registered(two):
    for record in two["copied"]:
        assert record["kinds"] == ["DistributedDataParallel"] * 2
        assert record["again"] == [1.0, pytest.approx(0.2)]
        attached, copy, original = record["copy"]
        assert not attached
        assert copy == original == pytest.approx(0.2)
        assert record["registered"] == [True, None, None, None]


def test_what_was_frozen_between_is_one_clear_error(two):
    for name, text in two["frozen_between"]:
        assert name == "StateMismatchError"
        assert "shape (4,) that was frozen when the compression was registered" in text


def test_what_ddp_ignores_is_left_alone(two):
    assert two["ignored"] == [[["a", "b"], 0.5]] * 2


def test_ranks_at_different_steps_are_refused_on_all(two):
    for rank, (name, text) in enumerate(two["steps_apart"]):
        assert name == "StateMismatchError"
        assert f"ranks [1] have done another number of steps than rank 0 (here {3 * rank})" in text


def test_static_graphs_and_compiled_models(two):
    for arrived, held, compiled in two["static"]:
        assert sum(arrived) + 2 * held == pytest.approx(0.7 * 2 * 3)
        assert compiled == 0.5


def test_ranks_of_a_group_of_their_own(tmp_path):
    found = play(RANKS, tmp_path, 4, "part_of_the_job")["part_of_the_job"]
    assert found == [[0, 2, 1.0], [1, 2, 1.0], [0, 2, -1.0], [1, 2, -1.0]]


def test_a_thread_of_the_group_is_not_the_last_to_hold_it(two):
    """Else a job of several groups now and then died at its end, after all had gone well."""
    assert two["let_go"] == [[[2, 2], [True]]] * 2


def test_the_first_rank_gives_tensors_of_all_kinds_and_nothing_where_ranks_hold_others(two):
    one, other = two["first_rank"]
    assert one["held"] == other["held"]
    assert (one["own"], other["own"]) == (0.0, 2.0)  # DDP was told to ignore it
    assert one["refused"] == other["refused"]
    assert "optimizers of other steps" in one["refused"][1]
    assert one["untouched"]
    assert other["untouched"]


def test_an_optimizer_that_tells_copies_of_its_state_goes_on_as_the_first_rank_s(two):
    """Writing into what it told changed nothing, and ranks trained other models from then on."""
    one, other = two["first_rank_of_copies"]
    assert one == other


def test_the_first_rank_gives_buffers_that_are_only_marked_as_conjugated_or_negated(two):
    one, other = two["first_rank_of_marked"]
    assert one == other == [[[1.0, -2.0]] * 4, [-2.0] * 4]
