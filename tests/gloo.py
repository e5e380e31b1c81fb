"""Starts the ranks of a real job on this machine and reads what each of them saw."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs import Program
from tests.project.tree import ROOT

#: Act -> what each rank that lived recorded of it, in the order of ranks.
Found = dict[str, list[Any]]


def play(
    module: str, folder: Path, ranks: int, *acts: str, store: str = "file", forked: bool = False
) -> Found:
    """Runs ``python -m MODULE STORE RANK RANKS OUT ACT...`` for every rank; what they recorded.

    Args:
        forked: by processes that need not import torch; how they end is not what is tested.
    """
    if store == "tcp":
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            store = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    else:
        store = f"file://{folder / 'store'}"
    outs = [folder / f"rank{rank}.json" for rank in range(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DYNAQUANT_THREADS": "1"}
    commands = [
        ["-m", module, store, str(rank), str(ranks), str(out), *acts] for rank, out in enumerate(outs)
    ]
    started = [_started(command, environment, forked=forked) for command in commands]
    try:
        errors = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    codes = [process.returncode for process in started]
    assert set(codes) <= {0, -9}, "\n".join(errors)
    records = [json.loads(out.read_text("utf-8")) for out, code in zip(outs, codes, strict=True) if code == 0]
    return {act: [record[act] for record in records] for act in acts}


def _started(
    words: list[str], environment: dict[str, str], *, forked: bool
) -> subprocess.Popen[str] | Program:
    if forked:
        return Program(words, env=environment)
    command = [sys.executable, *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
