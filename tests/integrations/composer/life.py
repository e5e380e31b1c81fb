"""A training process for tests that kill it: ``-m tests.integrations.composer.life FOLDER BATCHES DELAY``.

It dies by SIGKILL, ``DELAY`` seconds after training began (0: never), wherever it is then.  It prints where
it began, and at the end a digest of everything that a run consists of.
"""

import sys
import time

from composer.core import Callback

from tests.integrations.composer.kit import EXACT, everything, ours, trainer
from tests.integrations.killing import die_after, digest_of, say


class Slow(Callback):
    """So that there is something to hit."""

    def batch_end(self, state, logger):
        time.sleep(0.02)


def main(folder, batches, delay):
    callback = ours(folder, "3ba", num_checkpoints_to_keep=2, max_chain=2, **EXACT)
    run = trainer(callback, Slow(), duration=f"{batches}ba", autoresume=True)
    say("start", int(run.state.timestamp.batch))
    die_after(delay)
    if int(run.state.timestamp.batch) < batches:
        run.fit()
    say("digest", digest_of(everything(run)))
    run.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
