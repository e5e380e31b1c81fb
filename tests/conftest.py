"""What all tests stand on, whoever starts them."""

from __future__ import annotations

import os
import signal

import torch


def pytest_configure() -> None:
    """Ctrl-C interrupts: a shell's background job inherits that it is ignored, and hands that on.

    Without a device Triton interprets: it must be told before anybody imports it, and torch's compiler does.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
