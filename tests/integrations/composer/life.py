"""A training process for tests that kill it: ``-m tests.integrations.composer.life FOLDER BATCHES DELAY``.

It dies by SIGKILL, ``DELAY`` seconds after training began (0: never), wherever it is then.  It prints where
it began, and at the end a digest of everything that a run consists of.
"""

import hashlib
import os
import signal
import sys
import threading
import time

from composer.core import Callback

from tests.integrations.composer.kit import EXACT, everything, ours, trainer


def die_after(seconds):
    def die():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


class Slow(Callback):
    """So that there is something to hit."""

    def batch_end(self, state, logger):
        time.sleep(0.02)


def digest(run):
    return hashlib.sha256(repr(everything(run)).encode()).hexdigest()


def main(folder, batches, delay):
    callback = ours(folder, "3ba", num_checkpoints_to_keep=2, max_chain=2, **EXACT)
    run = trainer(callback, Slow(), duration=f"{batches}ba", autoresume=True)
    sys.stdout.write(f"start {int(run.state.timestamp.batch)}\n")
    sys.stdout.flush()
    if delay:
        die_after(delay)
    if int(run.state.timestamp.batch) < batches:
        run.fit()
    sys.stdout.write(f"digest {digest(run)}\n")
    run.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
