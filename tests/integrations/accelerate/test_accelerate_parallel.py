"""Two processes of gloo: one search together, one writer, and both go on from what it wrote."""

import socket

from dynaquant_core.plugins import is_checkpoint, read_tree
from tests.integrations.accelerate.kit import EPOCH, names, python


def together(*words, ranks=2):
    """Runs the ranks of one job; what each said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared |= {"ACCELERATE_USE_CPU": "true", "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    jobs = [
        python(
            "-m",
            "tests.integrations.accelerate.apart",
            *words,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    ended = [job.communicate(timeout=150) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * ranks, [errors for _, errors in ended]
    return [said for said, _ in ended]


def test_two_ranks_save_once_and_resume(tmp_path):
    first, second = together(tmp_path, EPOCH, 0)
    assert first.split()[0] == str(EPOCH)
    assert second == ""
    folder = tmp_path / "checkpoints" / "checkpoint_0"
    assert is_checkpoint(folder)
    assert {"random_states_0.pkl", "random_states_1.pkl"} <= set(names(folder))
    assert not [name for name in read_tree(folder)["model"] if name.startswith("module.")]
    step, _, kind, _ = together(tmp_path, 2 * EPOCH, EPOCH)[0].split()
    assert (step, kind) == (str(2 * EPOCH), "delta")
