"""One rank of a job whose writer has no room left: ``python -m tests.integrations.composer.full FOLDER``.

Prints what this rank heard at the end of ``fit``, and of what it had to wait for.
"""

import json
import os
import sys
import time
from types import SimpleNamespace

import torch
from composer.utils import dist

from dynaquant_core.errors import DynaQuantError
from tests.integrations.composer.kit import EXACT, ours, trainer


def main(folder):
    torch.set_num_threads(1)
    run = trainer(ours(folder, "2ba", **EXACT), duration="2ba", dist_timeout=60)
    real = os.statvfs
    if dist.get_global_rank() == 0:
        os.statvfs = lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=100)
    began, heard = time.monotonic(), "nothing"
    try:
        run.fit()
    except DynaQuantError as error:
        heard = f"{type(error).__name__}: {error}"
    os.statvfs = real
    sys.stdout.write(json.dumps([heard, time.monotonic() - began < 30]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
