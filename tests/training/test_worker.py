import signal
import subprocess
import sys
import threading
import time

import pytest

from dynaquant_core.errors import SaveError, StorageError
from dynaquant_core.training.worker import Worker


def fail():
    raise StorageError("disk full")


def test_jobs_run_on_another_thread_one_at_a_time():
    worker, running, most = Worker("here"), [], []

    def job(number):
        running.append(number)
        most.append(len(running))
        time.sleep(0.01)
        running.remove(number)
        return number, threading.current_thread()

    for number in range(5):
        worker.submit(lambda number=number: job(number))
    number, thread = worker.wait()
    assert number == 4
    assert thread is not threading.current_thread()
    assert max(most) == 1


def test_submit_waits_for_the_job_before():
    worker, gate, order = Worker("here"), threading.Event(), []

    def slow():
        gate.wait()
        order.append("first")

    worker.submit(slow)
    assert worker.busy
    threading.Timer(0.05, gate.set).start()
    worker.submit(lambda: order.append("second"))
    worker.wait()
    assert order == ["first", "second"]


def test_an_error_is_raised_once_at_the_next_call_and_again_at_close():
    worker = Worker("here")
    worker.submit(fail)
    with pytest.raises(SaveError, match="disk full") as caught:
        worker.wait()
    assert isinstance(caught.value.__cause__, StorageError)
    worker.check()
    worker.submit(lambda: "good")
    assert worker.wait() == "good"
    with pytest.raises(SaveError, match="disk full"):
        worker.close()
    worker.close()


def test_a_failed_job_stops_the_next_submit():
    worker, done = Worker("here"), []
    worker.submit(fail)
    with pytest.raises(SaveError):
        worker.submit(lambda: done.append(1))
    assert not done
    worker.submit(lambda: done.append(1))
    worker.wait()
    assert done == [1]


def test_the_last_good_result_stays():
    worker = Worker("here")
    assert worker.wait() is None
    worker.submit(lambda: 1)
    worker.wait()
    worker.submit(fail)
    with pytest.raises(SaveError):
        worker.wait()
    assert worker.result == 1


def test_a_program_that_forgets_to_close_still_finishes_the_write(tmp_path):
    program = (
        "import sys, time\n"
        "from dynaquant_core.training.worker import Worker\n"
        "def job():\n"
        "    time.sleep(0.2)\n"
        "    open(sys.argv[1], 'w').write('whole')\n"
        "Worker('here').submit(job)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "whole"


def test_a_thread_that_cannot_start_is_an_error_and_the_next_one_starts():
    worker, before = Worker("here"), threading.stack_size(1 << 46)  # more than any address space has
    try:
        with pytest.raises(SaveError, match="no thread could be started"):
            worker.submit(lambda: "never")
    finally:
        threading.stack_size(before)
    assert worker.wait() is None
    worker.submit(lambda: "written")
    assert worker.wait() == "written"
    worker.close()


def interrupting(seconds, call):
    """Calls something that a signal interrupts after a while, as Ctrl-C would."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("call", [Worker.wait, Worker.close, lambda worker: worker.submit(fail)])
def test_an_interrupt_while_waiting_loses_no_write(call):
    """Its thread is still known: the next call waits for it, and its failure is told."""
    worker, gate = Worker("here"), threading.Event()

    def slow():
        gate.wait()
        fail()

    worker.submit(slow)
    interrupting(0.05, lambda: call(worker))
    assert worker.busy
    threading.Timer(0.05, gate.set).start()
    with pytest.raises(SaveError, match="disk full"):
        worker.wait()
    assert not worker.busy


def test_a_handler_may_wait_for_what_its_own_thread_is_waiting_for(tmp_path):
    """At every line of the wait, one after the other: a lock that the wait holds would keep both for ever."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import faulthandler, signal, sys, threading
from dynaquant_core.training.worker import Worker

faulthandler.dump_traceback_later(60, exit=True)
codes, waited = {}, []


def at_line(chosen):
    seen = []

    def local(frame, event, _):
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == chosen:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return local

    def tracer(frame, event, _):
        name = frame.f_code.co_filename
        return local if name.endswith(("threading.py", "worker.py")) else None

    return seen, tracer


for chosen in range(1, 100):
    worker, gate = Worker("here"), threading.Event()
    worker.submit(gate.wait)
    def handler(*_, gate=gate, worker=worker):
        gate.set()
        waited.append(worker.wait())

    signal.signal(signal.SIGUSR1, handler)
    threading.Timer(0.05, gate.set).start()
    seen, tracer = at_line(chosen)
    sys.settrace(tracer)
    worker.wait()
    sys.settrace(None)
    if len(seen) < chosen:
        break
print("ended", len(waited) > 3)
"""
    )
    ran = subprocess.run([sys.executable, program], check=False, capture_output=True, text=True, timeout=100)
    assert ran.stdout.split() == ["ended", "True"], ran.stderr
