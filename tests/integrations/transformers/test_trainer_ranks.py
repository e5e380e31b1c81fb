"""Two processes of gloo: one search together, one writer, and both go on from what it wrote."""

import json

import pytest
import transformers

from dynaquant_core.plugins import describe
from tests.gloo import environments
from tests.integrations.pages import shown
from tests.integrations.transformers.kit import checkpoints, names, program, trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the ranks train."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def said(folder):
    """What each of two ranks said."""
    jobs = [
        program("-m", "tests.integrations.transformers.ranks", folder, env=environment)
        for environment in environments(2)
    ]
    try:
        ended = [job.communicate(timeout=300) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0, 0], [errors[-3000:] for _, errors in ended]
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def test_two_ranks_train_and_resume_as_without_us(folder, said):
    assert [one["saved"] for one in said] == [[6, True, True]] * 2
    assert checkpoints(folder / "searched") == checkpoints(folder / "native") == [2, 4, 6]
    found = names(folder / "searched" / "checkpoint-6")
    assert {"rng_state_0.pth", "rng_state_1.pth", "scheduler.pt", "trainer_state.json"} <= found
    assert not {"model.safetensors", "optimizer.pt"} & found


def test_gradients_may_travel_in_two_bits(said):
    first, second = (one["two_bit"] for one in said)
    assert first == second
    assert (first[0], first[2]) == (6, 8)  # two more in a second train() of the same Trainer
    assert first[1] != first[3]


def test_a_best_checkpoint_that_never_came_is_loaded_by_no_rank(said):
    first, second = (one["lost"] for one in said)
    assert first == second
    assert first[0] is None


def test_a_rank_that_fails_or_is_silent_ends_both_by_name_and_the_checkpoint_is_there(folder, said):
    first, second = said
    assert first["fails"] == second["fails"]
    assert first["fails"].startswith(
        "EvaluationError: rank 1 of 2: evaluate raised ValueError: rank one cannot"
    )
    assert first["away"] == second["away"]
    assert first["away"].startswith("EvaluationError: rank 1 of 2 did not answer within 3 s")
    assert (first["late"], second["late"]) == (False, True)  # the first has not waited for the second
    for ended in ("fails", "away"):
        checkpoint = folder / ended / "checkpoint-2"
        assert describe(checkpoint).met is None  # nothing was found: the weights are exact
        assert {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"} <= names(checkpoint)


def test_every_rank_finds_a_checkpoint_when_it_hears_of_it_or_goes_on_after_a_save(said):
    first, second = said
    assert first["both"] == second["both"] == second["alone"]
    whole, found = second["both"]
    assert whole
    assert {"dynaquant.json", "rng_state_0.pth", "rng_state_1.pth"} <= set(found)
    assert first["copied"]
    assert second["copied"]


def test_both_hear_of_a_save_that_one_of_them_wanted_to_find_and_that_failed(said):
    (first, nothing), (second, neither) = (one["full"] for one in said)
    assert "File too large" in first
    assert second == f"SaveError: rank 0 of 2: {first}"
    assert nothing is neither is None


def test_every_rank_finds_the_checkpoints_when_training_has_ended(said):
    assert [one["found"] for one in said] == [[["checkpoint-2"], True]] * 2


def test_ranks_go_on_from_one_checkpoint_or_none_does(said):
    """Each passing over what it cannot read itself, they trained from different steps."""
    (first, first_step), (second, second_step) = (one["differs"] for one in said)
    assert second.startswith("StorageError: rank 0 resumes from")
    assert "Input/output error" in second
    assert first == f"SaveError: rank 1 of 2: {second}"
    assert (first_step, second_step) == (3, 3)


def test_the_same_script_trains_in_one_process_whose_model_is_in_no_ddp(tmp_path):
    packs = shown("two-bit.md", "class TwoBits(transformers", transformers=transformers)["TwoBits"]()
    packs.trainer = trainer(tmp_path, packs, max_steps=2, save_strategy="no")
    assert packs.trainer.train().global_step == 2
