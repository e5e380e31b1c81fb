"""A training process for tests that kill it: ``-m tests.integrations.accelerate.life FOLDER STEPS DELAY``.

It dies by SIGKILL, ``DELAY`` seconds after training began (0: never), wherever it is then.  It prints where
it began, and at the end a digest of everything that a run consists of.
"""

import hashlib
import os
import signal
import sys
import threading
import time

from tests.integrations.accelerate.kit import EPOCH, EXACT, build, evaluate, everything, resume, train


def die_after(seconds):
    def die():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


def digest(bench):
    return hashlib.sha256(repr(everything(bench)).encode()).hexdigest()


def main(folder, steps, delay):
    bench = resume(build(folder, total_limit=2, options=EXACT | {"evaluate": evaluate, "max_chain": 2}))
    sys.stdout.write(f"start {bench.done}\n")
    sys.stdout.flush()
    if delay:
        die_after(delay)
    train(bench, steps, save_every=EPOCH, after_step=lambda: time.sleep(0.02))
    bench.accelerator.end_training()
    sys.stdout.write(f"digest {digest(bench)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
