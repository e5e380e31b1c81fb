"""Two processes of gloo: one search together, one writer, and both go on from what it wrote."""

import socket

from dynaquant_composer.pointer import folder_of
from dynaquant_core.plugins import read_tree
from tests.integrations.composer.kit import names, program


def together(*words, ranks=2):
    """Runs the ranks of one job; what each said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    shared |= {"NODE_RANK": 0, "OMP_NUM_THREADS": 1}
    jobs = [
        program(
            "-m",
            "tests.integrations.composer.apart",
            *words,
            env={name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()},
        )
        for rank in range(ranks)
    ]
    ended = [job.communicate(timeout=200) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * ranks, [errors[-3000:] for _, errors in ended]
    return [said.splitlines()[-1].split() for said, _ in ended]


def test_two_ranks_save_once_and_resume(tmp_path):
    (step, kind, met, evaluations, weights), (nothing, same) = together(tmp_path, 3, 0)
    assert (step, kind, met) == ("3", "key", "True")
    assert int(evaluations) > 0
    assert nothing == "-"
    assert same == weights  # the search has left both replicas as they were
    assert names(tmp_path) == ["ep0-ba3-rank0.pt", "ep0-ba3-rank0.pt.dynaquant", "latest-rank0.pt"]
    tree = read_tree(folder_of(tmp_path / "ep0-ba3-rank0.pt"))
    assert len(tree["rng"]) == 2
    (step, kind, *_), _ = together(tmp_path, 7, 3)
    assert (step, kind) == ("7", "delta")
