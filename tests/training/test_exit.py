"""A script that ends without closing its Checkpointer: the write that it began is finished."""

import os
import subprocess
import sys

import pytest

import dynaquant_core as dq

SCRIPT = """
import sys
import torch
import dynaquant_core as dq

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
checkpoints = dq.Checkpointer(sys.argv[1], model, every=1)
if sys.argv[2] == "atexit":
    import atexit
    atexit.register(checkpoints.close)  # runs last
    atexit.register(checkpoints.save)
else:
    checkpoints.restore()
    for _ in range(2):
        checkpoints.step()
if sys.argv[2] == "raises":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("end", "status"), [("falls off", 0), ("raises", 3), ("atexit", 0)])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_the_last_checkpoint_is_there(tmp_path, end, status, threads):
    """Python shuts its thread pools before it waits for the thread that still encodes."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), end]
    env = os.environ | {"DYNAQUANT_THREADS": threads}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, done.stderr
    assert "Error" not in done.stderr
    store = dq.CheckpointStore(tmp_path / "store")
    assert store.steps() == ([0] if end == "atexit" else [1, 2])
    assert store.verify(deep=True) == []
