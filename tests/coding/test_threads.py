"""The pool: order, exceptions, nesting, forks, slices."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from dynaquant_core.errors import ConfigError
from dynaquant_core.threads import MAX_THREADS, map_threads, slices, thread_count


@pytest.fixture(params=["1", "2", "5"])
def threads(request, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", request.param)
    return int(request.param)


def test_count(monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", "3")
    assert thread_count() == 3
    monkeypatch.setenv("DYNAQUANT_THREADS", "999")
    assert thread_count() == MAX_THREADS
    monkeypatch.delenv("DYNAQUANT_THREADS")
    assert 1 <= thread_count() <= MAX_THREADS


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process can be pinned on this system")
@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("3", "3")])
def test_a_pinned_process_starts_no_more_threads_than_it_has_cores(given, expected):
    """On a node whose jobs are given a core each, every one would start a thread for every core."""
    environment = {name: value for name, value in os.environ.items() if name != "DYNAQUANT_THREADS"}
    if given is not None:
        environment["DYNAQUANT_THREADS"] = given
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from dynaquant_core.threads import thread_count; print(thread_count())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_count_refuses(monkeypatch, text):
    monkeypatch.setenv("DYNAQUANT_THREADS", text)
    with pytest.raises(ConfigError, match="DYNAQUANT_THREADS"):
        thread_count()


def test_results_keep_their_order(threads):
    def slow_first(item):
        time.sleep(0.01 * (item == 0))
        return item * item

    assert map_threads(slow_first, range(20)) == [item * item for item in range(20)]
    assert map_threads(slow_first, []) == []


def test_calls_overlap(monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", "2")
    both = threading.Barrier(2, timeout=30)
    assert map_threads(lambda _: both.wait() >= 0, [0, 1]) == [True, True]


def test_the_first_exception_in_order_propagates_after_all_have_ended(threads):
    running = []

    def work(item):
        running.append(item)
        time.sleep(0.01)
        running.remove(item)
        if item >= 1:
            raise KeyError(item)

    with pytest.raises(KeyError, match="1"):
        map_threads(work, range(8))
    assert running == []


def test_nested_calls_end(threads):
    def outer(item):
        return sum(map_threads(lambda inner: item * inner, range(10)))

    assert map_threads(outer, range(12)) == [45 * item for item in range(12)]


def test_many_callers_share_the_pool(threads):
    found = []
    callers = [
        threading.Thread(target=lambda n=n: found.append(map_threads(lambda i: i + n, range(50))))
        for n in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(found) == [[i + n for i in range(50)] for n in range(4)]


def _in_child(queue):
    queue.put(map_threads(abs, [-1, -2, -3]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_threads_of_its_own(monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", "2")
    map_threads(abs, range(4))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == [1, 2, 3]
    child.join()


def test_slices_cover_everything_once(threads):
    for n in (0, 1, 7, 100, 101):
        for minimum in (1, 10, 1000):
            parts = slices(n, minimum)
            assert [i for part in parts for i in range(n)[part]] == list(range(n))
            assert len(parts) <= threads
            assert all(part.stop - part.start >= min(minimum, n) for part in parts)
