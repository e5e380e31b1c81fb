"""What all tests stand on, whoever starts them."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C interrupts: a shell's background job inherits that it is ignored, and hands that on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
