"""A signal that came when the ``with`` block ends by an error, which may be the signal's own."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from tests.project.tree import ROOT
from tests.training.models import EXACT, bits, build, net_loss, one_step, train


def ends(checkpoints, body):
    """A block around a body that ends in an error of its own."""
    with pytest.raises(ZeroDivisionError), checkpoints:
        body()


@pytest.mark.parametrize("told", [True, False])
def test_it_is_answered_all_the_same(tmp_path, caplog, told):
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=100, save_on="SIGUSR1", **EXACT)

    def body():
        train(model, optimizer, checkpoints, 2)
        os.kill(os.getpid(), signal.SIGUSR1)
        if not told:
            one_step(model, optimizer, net_loss)
        raise ZeroDivisionError

    ends(checkpoints, body)
    assert checkpoints.requested_by == "SIGUSR1"
    assert bits(checkpoints.store.load(2)["model"]) == bits(dict(model.state_dict()))
    assert ("an optimizer has stepped since step() was last called" in caplog.text) != told


def test_where_nothing_was_trained_there_is_nothing_to_save(tmp_path):
    checkpoints = dq.Checkpointer(tmp_path / "store", nn.Linear(8, 2), save_on=("SIGUSR1",))

    def body():
        os.kill(os.getpid(), signal.SIGUSR1)
        raise ZeroDivisionError

    ends(checkpoints, body)
    assert checkpoints.store.steps() == []


class Breaking(torch.optim.SGD):
    """Its steps end in the middle."""

    def step(self, closure=None):
        raise ZeroDivisionError


def test_half_of_a_step_is_not_saved(tmp_path, caplog):
    model, _ = build()
    optimizer = Breaking(model.parameters(), lr=0.1)
    checkpoints = dq.Checkpointer(tmp_path / "store", model, optimizer, every=100, save_on="SIGUSR1")

    def body():
        checkpoints.step()
        os.kill(os.getpid(), signal.SIGUSR1)
        optimizer.step()

    ends(checkpoints, body)
    assert checkpoints.store.steps() == []
    assert "half of the weights may have moved" in caplog.text
    assert "SIGUSR1 came, but step 1 could not be saved" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_a_block_whose_checkpointer_was_closed_inside_ends_as_it_would(tmp_path, fails):
    checkpoints = dq.Checkpointer(tmp_path, nn.Linear(8, 2), every=100, save_on="SIGUSR1")

    def body():
        with checkpoints:
            checkpoints.step()
            os.kill(os.getpid(), signal.SIGUSR1)
            checkpoints.close()
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            body()
    else:
        body()


def test_one_to_the_whole_group_is_answered_though_it_ends_the_workers_of_a_loader(tmp_path):
    """As timeout(1), systemd and Slurm send it: torch raises in the loop, and nothing was saved."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.training.loader_life", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert told.returncode == 1
    assert "DataLoader worker" in told.stderr
    assert told.stdout == "SIGUSR1\n"
    # On a machine that is busy torch has been seen to raise a step later.
    assert dq.CheckpointStore(tmp_path).steps() in ([3], [4])
