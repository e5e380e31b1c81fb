"""Under DDP one rank saves alone, and the others do not wait for its search."""

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.training.evaluation import Evaluation
from tests.gloo import leave, play


@pytest.fixture
def one_rank():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    leave()


@pytest.mark.parametrize("act", ["given", "nested", "closed over"])
def test_a_search_on_one_rank_keeps_no_other_waiting_and_changes_nothing(tmp_path, act):
    """A forward pass of DDP broadcasts the running means of a batch norm: rank 0 was alone in that."""
    found = play("tests.training.evaluating_ranks", tmp_path, 2, "without", act)
    (bare, never), (bare_one, _) = found["without"]
    (zero, measured), (one, _) = found[act]
    assert never == 0 < measured
    assert zero == bare
    assert one == bare_one


def test_so_it_does_where_the_ranks_have_other_numbers_of_batches(tmp_path):
    """Inside `Join` each forward pass of DDP asks all ranks who is done: rank 0 was alone in that."""
    found = play("tests.training.evaluating_ranks", tmp_path, 2, "without uneven", "uneven")
    assert [weights for weights, _ in found["uneven"]] == [weights for weights, _ in found["without uneven"]]
    assert [measured > 0 for _, measured in found["uneven"]] == [True, False]


def test_a_wrapper_that_is_made_inside_of_an_evaluation_works_after_it(one_rank):
    """As one that evaluate makes at its first call and keeps."""
    model, made = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), []

    def evaluate():
        if not made:
            made.append(DistributedDataParallel(model))
        return float(made[0](torch.ones(2, 4)).mean())

    assert Evaluation(evaluate, model)() == Evaluation(evaluate, model)()
    (parallel,) = made
    assert parallel.require_forward_param_sync  # as it was made, whatever has run since
    parallel(torch.ones(2, 4)).mean().backward()
    assert model[0].weight.grad is not None
