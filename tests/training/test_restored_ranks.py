"""A run of several ranks under DDP goes on from one checkpoint."""

from tests.gloo import play


def test_ranks_that_restore_one_checkpoint_are_told_whose_random_streams_they_have(tmp_path):
    """Seeded apart, as for dropout, they would go on with equal masks and nobody would see it."""
    (zero, quiet), (one, said) = play("tests.training.restored_ranks", tmp_path, 2, "streams")["streams"]
    assert one == zero
    assert not quiet
    assert any("put back on rank 1 as well" in line for line in said)


def test_ranks_that_compare_what_they_restored_go_on_together(tmp_path):
    """Each falls back by itself; `restore` returns what tells, and an explicit step is the same on all."""
    zero, one = play("tests.training.restored_ranks", tmp_path, 2, "apart")["apart"]
    assert zero[:2] == [[3, 2], 2]
    assert one == zero


def test_ranks_that_restore_what_they_saved_themselves_are_told_nothing(tmp_path):
    """Their streams are their own."""
    (zero, quiet), (one, said) = play("tests.training.restored_ranks", tmp_path, 2, "own")["own"]
    assert one != zero
    assert not quiet
    assert not said
