"""SIGKILL at random moments of training and of saving; then the Trainer's own argument."""

import random
import time

import pytest

from dynaquant_core.plugins import is_checkpoint
from tests.integrations.transformers.kit import checkpoints
from tests.integrations.transformers.life import live
from tests.programs import CONTEXT, serve


@pytest.fixture(scope="module")
def processes():
    """Each process begins as a copy of one that has imported everything."""
    serve(["tests.integrations.transformers.life"])
    return CONTEXT


def life(processes, *arguments):
    """A process that trains, and what it says."""
    mine, its = processes.Pipe(duplex=False)
    process = processes.Process(target=live, args=(str(arguments[0]), its, *arguments[1:]))
    process.start()
    its.close()
    return process, mine


def end(processes, *arguments):
    """Lets one live to its end; returns the step at which it began, and all that training consists of."""
    process, said = life(processes, *arguments)
    heard = {}
    while "end" not in heard:
        heard.update([said.recv()])
        heard.setdefault("first", heard.get("start"))
    process.join()
    assert process.exitcode == 0
    return heard["first"], heard["end"]


def kill(processes, folder, steps, chance, seed):
    """Kills one at a random moment; returns the step at which it began."""
    process, said = life(processes, folder, steps, True, seed)
    start = said.recv()[1]
    for _ in range(chance.randrange(2, 8)):
        said.recv()
    time.sleep(chance.random() * 0.08)
    process.kill()
    process.join()
    return start


def committed(folder):
    """The newest step that is safe, whether it bears its name already or not."""
    return max((int(p.name[11:]) for p in folder.rglob("checkpoint-*") if is_checkpoint(p)), default=0)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_and_resumed_is_bit_identical_to_uninterrupted(tmp_path, processes, kills):
    steps = 9 * kills  # no life is longer than 8
    began, whole = end(processes, tmp_path / "native", steps, False)
    assert (began, whole["step"]) == (0, steps)
    chance = random.Random(kills)
    folder, last = tmp_path / "ours", 0
    for number in range(kills):
        seed = number if last else 0  # once something is saved, the model one begins with cannot matter
        assert kill(processes, folder, steps, chance, seed) >= last, "nothing that was committed is lost"
        last = committed(folder)
    start, resumed = end(processes, folder, steps, True, 99 if last else 0)
    assert start == last
    assert resumed == whole
    assert checkpoints(folder)[-1] == steps
    assert not (folder / ".dynaquant").exists()
