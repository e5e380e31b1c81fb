"""A process of an experiment, forked by `forkserver`; by hand ``python -m ...experiments.process FOLDER``.

It reads its job from the folder, goes on from the newest checkpoint, and writes events to the diary.  On its
standard output it says, one JSON object a line, where it is.  At the halt step it waits for its parent to
kill it: a failure in these experiments is a SIGKILL of a process in the middle of its work.

With ``restores: swap`` the process lives several lives instead.  At a failure it throws away trainer,
Checkpointer and all that they hold, makes them anew as a new process would, and restores; nothing but the
data set, which no life changes, is handed on.  Final weights are those of the killed run, bit for bit.

It may also record exact states while it trains, replay such a recording, compress a pre-trained model and
fine-tune it, count rework, or train under a system.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.ablation.replays import REPLAYS
from dynaquant_core.experiments.config.systems import TwoBitSystem
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import Life, say
from dynaquant_core.experiments.locks import alone
from dynaquant_core.experiments.rework import run as rework
from dynaquant_core.experiments.systems.run import SystemRun
from dynaquant_core.experiments.transfer import Transfer

__all__ = ["live_on", "main", "work"]

logger = logging.getLogger(__name__)


def work(job: Job, halt: int | None) -> None:
    """Does what a job asks for, to its end."""
    if job.experiment.kind == "rework":
        rework.work(job)
    elif job.experiment.kind == "transfer" and job.saves:
        Transfer(job).run()
    elif job.experiment.kind == "system" and (job.saves or _of_replicas(job)):
        SystemRun(job).run()
    elif job.recording is not None:
        REPLAYS[job.experiment.measure](job).run()
    elif job.records:
        with alone(job.folder, lambda: say({"event": "waiting"})):
            if not events.find(events.read(job.diary), "final"):  # another one may have finished it
                live_on(job, halt)
    else:
        live_on(job, halt)


def _of_replicas(job: Job) -> bool:
    """Whether even the baseline is a training of several replicas, which a system makes."""
    return isinstance(job.experiment.system, TwoBitSystem)


def live_on(job: Job, halt: int | None) -> None:
    """One life after the other, until the run is finished."""
    data, finished = None, False
    while not finished:
        life = Life(job, halt, data)
        finished, data = life.live(), life.data
        del life  # before the next one is made: two models would be in memory


class Warnings(logging.Handler):
    """Passes warnings on to the parent, who shows them: nobody reads the log in a run's folder."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line to the parent."""
        say({"event": "warning", "message": record.getMessage()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job; 0 good, 1 a problem that is said as an ``error`` line."""
    parser = argparse.ArgumentParser(prog="dynaquant_core.experiments.process", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--halt", type=int, default=None)
    parser.add_argument("--parent", type=int, default=None, help="end when this is not the parent any more")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger().addHandler(Warnings(logging.WARNING))
    parent = os.getppid() if options.parent is None else options.parent
    if os.getppid() != parent:  # gone while this process was starting; nothing is touched
        return 1
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        work(Job.read(options.folder), options.halt)
    except DynaQuantError as error:
        say({"event": "error", "message": str(error)})
        return 1
    return 0


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, whatever it is doing: every state here survives that."""
    while os.getppid() == parent:
        time.sleep(0.2)
    logger.error("the parent is gone; a later run goes on from what was written")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
