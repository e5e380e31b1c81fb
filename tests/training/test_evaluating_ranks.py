"""Under DDP one rank saves alone, and the others do not wait for its search."""

import pytest

from tests.gloo import play


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
