"""Lives that end by SIGKILL: what the tests of several frameworks share.

A life is a process that prints "start STEP", trains, and at its end prints "digest HEX", a digest of
everything that the run consists of.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def bits(value: Any) -> Any:
    """Every tensor, array and number of a tree as something to compare."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), raw.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {str(key): bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)


def digest_of(everything: Any) -> str:
    return hashlib.sha256(repr(everything).encode()).hexdigest()


def say(word: str, value: object) -> None:
    sys.stdout.write(f"{word} {value}\n")
    sys.stdout.flush()


def die_after(seconds: float) -> None:
    """Ends this process in a while, wherever it is then; 0: never."""

    def die() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    if seconds:
        threading.Thread(target=die, daemon=True).start()


def outcome(process: Any, timeout: float = 200) -> tuple[int, dict[str, str]]:
    """A life's exit code and what it said."""
    said, errors = process.communicate(timeout=timeout)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode, dict(line.split() for line in said.splitlines())


def survive(
    live: Callable[[float], tuple[int, dict[str, str]]],
    committed: Callable[[], int],
    kills: int,
    seed: int,
    longest: float,
) -> str:
    """Kills so many lives, each of which goes on from the last committed save; the digest of the last one."""
    moments = random.Random(seed)
    for _ in range(kills):
        before = committed()
        code, said = live(moments.uniform(0.05, longest))
        assert int(said["start"]) == before
        if code == 0:
            return said["digest"]
    before = committed()
    code, said = live(0.0)
    assert (code, int(said["start"])) == (0, before)
    return said["digest"]


def ends_of_ranks(
    start: Callable[[Path], list[Any]], committed: Callable[[Path], int], folder: Path, seed: int
) -> tuple[str, str]:
    """Digests of rank 0: of a job of several ranks that nobody kills, and of one that is killed five times.

    One rank dies before the others, or with them.

    Args:
        start: starts the lives of one job's ranks in a folder.
        committed: the step of the last save there.
        folder: of both.
        seed: of the moments.
    """
    whole = [outcome(rank) for rank in start(folder / "whole")]
    return whole[0][1]["digest"], _killed(start, committed, folder / "killed", seed)


def _killed(
    start: Callable[[Path], list[Any]], committed: Callable[[Path], int], folder: Path, seed: int
) -> str:
    moments = random.Random(seed)
    for _ in range(5):
        before, ranks = committed(folder), start(folder)
        assert ranks[0].stdout.readline() == f"start {before}\n"
        time.sleep(moments.uniform(0.05, 2.0))
        moments.choice(ranks).kill()
        time.sleep(moments.choice([0, 0.5]))
        for rank in ranks:
            rank.kill()
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
        if said[0]:  # it had come to its end
            return dict(line.split() for line in said[0].splitlines())["digest"]
    before = committed(folder)
    ended = [outcome(rank) for rank in start(folder)]
    assert [(code, int(said["start"])) for code, said in ended] == [(0, before)] * len(ended)
    return ended[0][1]["digest"]
