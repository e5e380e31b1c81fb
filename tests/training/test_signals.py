import os
import signal
import threading

import pytest

from dynaquant_core.errors import ConfigError
from dynaquant_core.training.signals import SignalFlag


def test_a_signal_is_remembered_once_and_the_old_handler_comes_back():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        flag = SignalFlag(["SIGUSR1"])
        assert flag.take() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert flag.take() == "SIGUSR1"
        assert flag.take() is None
        assert not seen
        flag.close()
        flag.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["SIGNOTHING", "SIGKILL", "15"])
def test_what_cannot_be_caught_is_refused_and_leaves_nothing_behind(name):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError, match="save_on"):
        SignalFlag(["SIGTERM", name])
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_are_told_to_use_the_main_one():
    errors = []

    def run():
        try:
            SignalFlag(["SIGTERM"])
        except ConfigError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]


def test_one_signal_may_be_given_as_it_is():
    before = signal.getsignal(signal.SIGUSR1)
    flag = SignalFlag("SIGUSR1")
    assert signal.getsignal(signal.SIGUSR1) != before
    flag.close()
    assert signal.getsignal(signal.SIGUSR1) == before
