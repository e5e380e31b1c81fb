"""A signal that came when the ``with`` block ends by an error, which may be the signal's own."""

import multiprocessing
import os
import signal
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dynaquant_core as dq
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


class Drawn(Dataset):
    """What a loader's workers draw."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((16,), float(index))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork where threads are, in newer Pythons
def test_one_to_the_whole_group_is_answered_though_it_ends_the_workers_of_a_loader(tmp_path):
    """As timeout(1), systemd and Slurm send it: torch raises in the loop, and nothing was saved."""
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=10**6, save_on="SIGUSR1", **EXACT)

    def body():
        for _ in DataLoader(Drawn(), 8, num_workers=2):
            one_step(model, optimizer, net_loss)
            if checkpoints.completed == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
                for worker in multiprocessing.active_children():
                    os.kill(worker.pid, signal.SIGUSR1)
                time.sleep(20)  # torch raises in it
            checkpoints.step()

    with pytest.raises(RuntimeError, match="DataLoader worker"), checkpoints:
        body()
    assert checkpoints.requested_by == "SIGUSR1"
    # On a machine that is busy torch has been seen to raise a step later, and once more here.
    try:
        steps = checkpoints.store.steps()
    except RuntimeError:
        steps = checkpoints.store.steps()
    assert steps in ([3], [4])
