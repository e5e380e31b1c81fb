"""SmaQ in a checkpoint: its state, killed and resumed."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import smaq
from tests.memory.nets import bits, mlp, rows, train
from tests.programs import run as run_program


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_a_state_of_another_format_is_refused_and_changes_nothing():
    model = mlp()
    with smaq.apply(model, adamw(model)) as handle:
        before = handle.state_dict()
        with pytest.raises(StateMismatchError, match="the state is of format"):
            handle.load_state_dict(before | {"format": {"name": "fp16"}})
        with pytest.raises(StateMismatchError, match="a state has the keys"):
            handle.load_state_dict({})
        assert torch.equal(handle.state_dict()["generator"], before["generator"])


def test_a_state_of_another_format_is_refused_before_the_run_is_touched(tmp_path):
    """Handed to a checkpointer it is asked first; later the model would have its stored weights already."""

    def run(form):
        model = mlp()
        optimizer = adamw(model)
        handle = smaq.apply(model, optimizer, format=form)
        return model, optimizer, dq.Checkpointer(tmp_path, model, optimizer, extra={"smaq": handle})

    model, optimizer, checkpoints = run("smaq")
    with checkpoints:
        checkpoints.restore()
        train(model, optimizer, rows())
        checkpoints.step()
        checkpoints.save()
    model, optimizer, checkpoints = run("bf16")
    before = bits(model.parameters())
    with pytest.raises(StateMismatchError, match="the state is of format"):
        checkpoints.restore()
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert not optimizer.state


def live(folder, kill_at=-1):
    done = run_program(
        ["-m", "tests.memory.life", folder, 12, kill_at], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    return done.returncode, dict(line.split() for line in done.stdout.splitlines()), done.stderr


def test_killed_and_resumed_is_bit_identical_to_uninterrupted(tmp_path):
    code, whole, errors = live(tmp_path / "whole")
    assert code == 0, errors
    code, said, errors = live(tmp_path / "killed", kill_at=6)
    assert (code, said) == (-signal.SIGKILL, {"start": "0"}), errors
    code, resumed, errors = live(tmp_path / "killed")
    assert (code, resumed["start"]) == (0, "4"), errors
    assert resumed["digest"] == whole["digest"]


def test_without_the_handles_state_the_trajectory_is_another(tmp_path):
    """So the test above tests the state: a resumed run that begins the stream anew rounds otherwise."""
    ends = []
    for extra in (True, False):
        model = mlp()
        optimizer = adamw(model)
        for life in range(2):
            with smaq.apply(model, optimizer) as handle:
                given = {"every": 2, "exact": ("*",), "moments": "exact"}
                given["extra"] = {"smaq": handle} if extra else {}
                with dq.Checkpointer(tmp_path / str(extra), model, optimizer, **given) as checkpoints:
                    checkpoints.restore()
                    for step in range(2 * life, 2 * life + 2):
                        train(model, optimizer, rows(step))
                        checkpoints.step()
        ends.append(bits(model.parameters()))
    assert not torch.equal(ends[0][0], ends[1][0])
