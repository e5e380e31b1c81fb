"""Two processes of gloo: one search together, one writer, and both go on from what it wrote."""

import json

from dynaquant_composer.pointer import folder_of
from dynaquant_core.plugins import read_tree
from tests.gloo import environments
from tests.integrations.composer.kit import names, program


def together(*words, module="apart", ranks=2):
    """Runs the ranks of one job; the last line of each."""
    jobs = [
        program("-m", f"tests.integrations.composer.{module}", *words, env=environment)
        for environment in environments(ranks)
    ]
    ended = [job.communicate(timeout=200) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * ranks, [errors[-3000:] for _, errors in ended]
    return [said.splitlines()[-1] for said, _ in ended]


def test_two_ranks_save_once_and_resume(tmp_path):
    first, second = map(str.split, together(tmp_path, 3, 0))
    (step, kind, met, evaluations, weights), (nothing, same) = first, second
    assert (step, kind, met) == ("3", "key", "True")
    assert int(evaluations) > 0
    assert nothing == "-"
    assert same == weights  # the search has left both replicas as they were
    assert names(tmp_path) == ["ep0-ba3-rank0.pt", "ep0-ba3-rank0.pt.dynaquant", "latest-rank0.pt"]
    tree = read_tree(folder_of(tmp_path / "ep0-ba3-rank0.pt"))
    assert len(tree["rng"]) == 2
    step, kind, *_ = together(tmp_path, 7, 3)[0].split()
    assert (step, kind) == ("7", "delta")


def test_a_last_save_that_fails_ends_all_ranks_at_once(tmp_path):
    """The others do not wait in a barrier for the one that failed."""
    (first, soon), (second, as_soon) = map(json.loads, together(tmp_path, module="full"))
    assert first.startswith("SaveError: a checkpoint could not be written in the background")
    assert second == f"SaveError: rank 0 of 2: {first}"
    assert soon
    assert as_soon
