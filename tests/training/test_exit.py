"""A script that ends without closing its Checkpointer: the write that it began is finished."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from numba.core.compiler_lock import global_compiler_lock

import dynaquant_core as dq

SCRIPT = """
import sys
import torch
import dynaquant_core as dq

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
checkpoints = dq.Checkpointer(sys.argv[1], model, every=1)
if sys.argv[2].startswith("atexit"):
    import atexit
    if sys.argv[2] == "atexit":
        atexit.register(checkpoints.close)  # runs last
    atexit.register(checkpoints.save)
else:
    checkpoints.restore()
    for _ in range(2):
        checkpoints.step()
if sys.argv[2] == "raises":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("end", "status"), [("falls off", 0), ("raises", 3), ("atexit", 0), ("atexit, not closed", 0)]
)
@pytest.mark.parametrize("threads", ["1", "3"])
def test_the_last_checkpoint_is_there(tmp_path, end, status, threads):
    """Python shuts its thread pools before it waits for the thread that still encodes."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), end]
    env = os.environ | {"DYNAQUANT_THREADS": threads}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, done.stderr
    assert "Error" not in done.stderr
    store = dq.CheckpointStore(tmp_path / "store")
    assert store.steps() == ([0] if end.startswith("atexit") else [1, 2])
    assert store.verify(deep=True) == []


def test_a_save_from_another_thread_waits_and_the_weights_stay(tmp_path):
    """Two drafts at once would take each other's candidates for the model's own weights."""
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(64, 64), torch.randn(64, 64)

    def evaluate():
        loss = model(inputs).square().mean().item()
        time.sleep(0.02)
        return loss

    with dq.Checkpointer(tmp_path, model, every=1, evaluate=evaluate, threshold=0.2) as checkpoints:
        for _ in range(3):
            before = model.weight.detach().clone()
            other = threading.Thread(target=checkpoints.save)
            other.start()
            checkpoints.step()
            other.join()
            assert torch.equal(model.weight.detach(), before)
    assert dq.CheckpointStore(tmp_path).verify(deep=True) == []


FORKS = """
import os, sys, time, torch
import dynaquant_core as dq

torch.set_num_threads(1)  # its own threads do not survive a fork
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
checkpoints = dq.Checkpointer(sys.argv[1], model, every=1)
checkpoints.step()
child = os.fork()  # while the checkpoint is being written
if child == 0:
    try:
        checkpoints.step()
        status = 1
    except dq.DynaQuantError as error:
        print(type(error).__name__, flush=True)
        status = 0
    os._exit(status)
deadline = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(child, 9)
    sys.exit("the child hangs")
checkpoints.close()
sys.exit(os.waitstatus_to_exitcode(ended[1]))
"""


def test_a_child_that_is_forked_during_a_write_is_refused_and_does_not_hang(tmp_path):
    env = os.environ | {"DYNAQUANT_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "store")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error" in done.stdout
    assert dq.CheckpointStore(tmp_path / "store").verify(deep=True) == []


def test_a_fork_waits_for_what_is_being_compiled():
    """A child that finds Numba's lock taken, by a thread that it does not have, would wait for ever."""
    began, done = threading.Event(), []

    def compile_slowly():
        with global_compiler_lock:
            began.set()
            time.sleep(0.3)
            done.append("compiled")

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    began.wait()
    child = os.fork()
    if child == 0:
        taken = global_compiler_lock._lock.acquire(timeout=5)
        os._exit(0 if taken and done else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
