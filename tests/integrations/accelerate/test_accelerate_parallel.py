"""Two processes of gloo: one search together, one writer, and both go on from what it wrote."""

import json

import torch
from accelerate import Accelerator
from torch import nn

from dynaquant_core.plugins import describe, is_checkpoint, read_tree
from tests.gloo import environments
from tests.integrations.accelerate.kit import EPOCH, ON_CPU, names, python
from tests.integrations.pages import shown


def together(*words, ranks=2, module="apart"):
    """Runs the ranks of one job; what each said."""
    jobs = [
        python("-m", f"tests.integrations.accelerate.{module}", *words, env=environment | ON_CPU)
        for environment in environments(ranks)
    ]
    try:
        ended = [job.communicate(timeout=150) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0] * ranks, [errors for _, errors in ended]
    return [said for said, _ in ended]


def test_two_ranks_save_once_resume_and_leave_together(tmp_path):
    first, second = together(tmp_path, EPOCH, 0, "back")
    assert first.split()[0] == str(EPOCH)
    assert second == ""
    folder = tmp_path / "checkpoints" / "checkpoint_0"
    assert is_checkpoint(folder)
    assert {"random_states_0.pkl", "random_states_1.pkl"} <= set(names(folder))
    assert not [name for name in read_tree(folder)["model"] if name.startswith("module.")]
    (resumed, first), (second,) = map(str.splitlines, together(tmp_path, 2 * EPOCH, EPOCH, "leave"))
    step, _, kind, _ = resumed.split()
    assert (step, kind) == (str(2 * EPOCH), "delta")
    (failed, silent, late), heard = json.loads(first), json.loads(second)
    assert failed.startswith("EvaluationError: rank 1 of 2: evaluate raised ValueError: rank one cannot")
    assert silent.startswith("EvaluationError: rank 1 of 2 did not answer within 3 s")
    assert (late, heard) == (False, [failed, silent, True])  # the first has not waited for the second
    for place in ("fails", "stays_away"):
        folder = tmp_path / place / "checkpoints" / "checkpoint_0"
        assert describe(folder).met is None  # nothing was found: the weights are exact
        assert {"random_states_0.pkl", "random_states_1.pkl"} <= set(names(folder))


def by_itself(folder, act):
    """What each rank found, and of each checkpoint its step and whether the threshold was measured."""
    found = [json.loads(said) for said in together(folder, act, module="by_itself")]
    described = {path.name: describe(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    return *found, {name: (info.step, info.met) for name, info in described.items()}


def test_the_main_process_may_save_alone(tmp_path):
    """Natively it may; the others are in the next step, and wait for it there."""
    first, second, stored = by_itself(tmp_path, "main_only")
    assert first == [7, 1, 1]
    assert second[0] == 7
    assert stored["by-main-1"] == (2, None)
    assert stored["by-main-2"] == (4, None)
    assert stored["by-all"][0] == 6
    assert stored["by-all-again"] == (7, True)
    assert "random_states_1.pkl" in names(tmp_path / "by-all")


def test_a_process_that_comes_too_late_waits_for_nobody(tmp_path):
    first, second, stored = by_itself(tmp_path, "late")
    assert (first, second) == ([7, 1, 0], [7, 0, 1])
    assert stored == {"late-1": (2, True), "late-2": (4, None), "late-3": (6, True)}
    assert "random_states_1.pkl" in names(tmp_path / "late-2")


def test_where_processes_count_otherwise_the_main_one_s_step_holds(tmp_path):
    first, second, stored = by_itself(tmp_path, "uneven")
    assert first == second == [12, 13]
    assert stored == {"uneven-1": (6, True), "uneven-2": (12, True), "uneven-3": (13, True)}


def test_processes_that_restored_other_checkpoints_are_told(tmp_path):
    (failed, *first), (of_the_other, *second), stored = by_itself(tmp_path, "apart")
    assert failed.startswith("SaveError: a checkpoint could not be written in the background (FileNotFound")
    assert of_the_other == f"SaveError: rank 0 of 2: {failed}"
    assert first == second
    told, step = first
    assert told.startswith("SaveError: rank 1 of 2 is at step 5, restored at step 4, and rank 0 at step 3, ")
    assert step == 5
    assert list(stored) == ["apart-1", "apart-2", "apart-4"]


def test_the_main_process_alone_may_ask_for_the_newest(tmp_path):
    first, second = (json.loads(said) for said in together(tmp_path, "look", module="by_itself"))
    assert (first, second) == (["checkpoint_0", 3], [None, 3])


def test_what_one_rank_cannot_write_or_remove_both_hear_and_go_on(tmp_path):
    first, second = map(json.loads, together(tmp_path, 0, 0, "refuse"))
    link, hook, after = zip(first, second, strict=True)
    assert "cannot be written" in link[0]
    assert "symbolic link" in link[0]
    assert link[1].startswith("SaveError: rank 0 of 2: OSError: Cannot call rmtree on a symbolic link")
    assert hook[0] == "SaveError: rank 1 of 2: OSError: no room for mine"
    assert hook[1].endswith("cannot be written: no room for mine")
    assert after == ("nothing", "nothing")


def test_two_bits_of_the_page_leave_one_process_alone_whose_model_is_in_no_ddp():
    model = nn.Linear(4, 2)
    there = {"accelerator": Accelerator(cpu=True), "model": model}
    found = shown(
        "two-bit.md", "model, optimizer = acc", optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **there
    )
    assert "state" not in found
    found["accelerator"].backward(found["model"](torch.ones(1, 4)).sum())
    found["optimizer"].step()
