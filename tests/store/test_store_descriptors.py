"""A chain of more files than the process may have open."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynaquant_core.store import CheckpointStore
from tests.store.kit import exact_store, small_state

LINKS = 40

#: In a process that may not raise its limit: loading the newest and an explicit step, and a deep look at a
#: second line, which goes back to the key; then what a look and a deep look at one line find.
TIGHT = """
import os, resource, sys
from dynaquant_core.errors import StorageError
from dynaquant_core.store import CheckpointStore
CheckpointStore(sys.argv[1]).load(0)  # what is imported on the way is there
room = len(os.listdir("/proc/self/fd")) + 20
resource.setrlimit(resource.RLIMIT_NOFILE, (room, room))
line, second = map(CheckpointStore, sys.argv[1:])
for ask in (line.load, lambda: line.load(39), lambda: second.verify(deep=True)):
    try:
        ask()
    except StorageError as error:
        print("limit on open files" in str(error))
print(len(line.verify()), len(line.verify(deep=True)))
"""


@pytest.fixture(scope="module")
def long_chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chain")
    with exact_store(path, max_chain=LINKS) as store:
        for step in range(LINKS):
            store.save(step, {"x": small_state(step)["rng"]})
    return path


@pytest.fixture
def few_files() -> Iterator[int]:
    """Sets a soft limit that the chain is over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + LINKS // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_while_a_chain_is_read_and_then_put_back(
    long_chain: Path, few_files: int
) -> None:
    store = CheckpointStore(long_chain)
    assert store.load(LINKS - 1)["x"].tolist() == small_state(LINKS - 1)["rng"].tolist()
    assert store.newest() is not None
    assert store.verify(deep=True) == []
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files


def test_where_it_cannot_be_raised_whole_files_are_neither_passed_over_nor_called_damaged(
    long_chain: Path, tmp_path: Path
) -> None:
    with exact_store(tmp_path, max_chain=LINKS + 4) as store:
        for step in range(LINKS + 6):
            store.save(step, {"x": small_state(step)["rng"]})
        assert store.info(LINKS + 5).base_step == LINKS // 2 + 2
    command = [sys.executable, "-c", TIGHT, str(long_chain), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True", "0", "0"]
