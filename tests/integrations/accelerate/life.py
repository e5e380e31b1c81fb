"""A training process for tests that kill it: ``-m tests.integrations.accelerate.life FOLDER STEPS DELAY``.

It dies by SIGKILL, ``DELAY`` seconds after training began (0: never), wherever it is then.  It prints where
it began, and at the end a digest of everything that a run consists of.
"""

import sys
import time

from tests.integrations.accelerate.kit import EPOCH, EXACT, build, evaluate, everything, resume, train
from tests.integrations.killing import die_after, digest_of, say


def main(folder, steps, delay):
    bench = resume(build(folder, total_limit=2, options=EXACT | {"evaluate": evaluate, "max_chain": 2}))
    say("start", bench.done)
    die_after(delay)
    train(bench, steps, save_every=EPOCH, after_step=lambda: time.sleep(0.02))
    bench.accelerator.end_training()
    say("digest", digest_of(everything(bench)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
