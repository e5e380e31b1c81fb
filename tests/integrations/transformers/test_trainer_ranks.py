"""Two processes of gloo: one search together, one writer, and both go on from what it wrote."""

import socket

from tests.integrations.transformers.kit import checkpoints, names, python


def test_two_ranks_train_and_resume_as_without_us(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    jobs = [
        python(
            "-m",
            "tests.integrations.transformers.ranks",
            tmp_path,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=-1,
            stderr=-1,
        )
        for rank in range(2)
    ]
    ended = [job.communicate(timeout=300) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], [errors[-3000:] for _, errors in ended]
    step, _, met, evaluations = ended[0][0].splitlines()[-1].split()
    assert (step, met) == ("6", "True")
    assert int(evaluations) > 0
    assert checkpoints(tmp_path / "searched") == checkpoints(tmp_path / "native") == [2, 4, 6]
    found = names(tmp_path / "searched" / "checkpoint-6")
    assert {"rng_state_0.pth", "rng_state_1.pth", "scheduler.pt", "trainer_state.json"} <= found
    assert not {"model.safetensors", "optimizer.pt"} & found
