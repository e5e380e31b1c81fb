"""A job in a process of its own, whose folder is watched meanwhile.

``python lives.py FRAMEWORK JOB OUT`` is such a process: a job as JSON, and the file for what it tells.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from job import Job, on_disk

#: Seconds between two looks at the folder.
LOOK = 0.1


def live(framework: str, job: Job) -> dict[str, Any]:
    """Runs a job; what it told at its end, and the most that lay in its folder.

    Raises:
        RuntimeError: it ended otherwise than it was told to.
    """
    out = Path(job.folder).with_suffix(".json")
    command = [sys.executable, __file__, framework, json.dumps(asdict(job)), str(out)]
    Path(job.folder).parent.mkdir(parents=True, exist_ok=True)
    with Path(job.folder).with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - this program itself
        peak = 0
        while process.poll() is None:
            peak = max(peak, on_disk(Path(job.folder)))
            time.sleep(LOOK)
    told = Path(job.folder).with_suffix(".log").read_text("utf-8")
    if process.returncode != (-signal.SIGKILL if job.kill_at else 0):
        message = f"{framework} ended with {process.returncode}: {told[-2000:]}"
        raise RuntimeError(message)
    complaints = [line for line in told.splitlines() if "Traceback" in line or "dynaquant" in line.lower()]
    found: dict[str, Any] = {} if job.kill_at else json.loads(out.read_text("utf-8"))
    return {**found, "peak": peak, "disk": on_disk(Path(job.folder)), "complaints": complaints}


def main() -> None:
    """One life."""
    framework, data, out = sys.argv[1:]
    job = Job(**json.loads(data))
    torch.set_num_threads(job.threads)
    Path(out).write_text(json.dumps(import_module(f"of_{framework}").train(job)), encoding="utf-8")


if __name__ == "__main__":
    main()
