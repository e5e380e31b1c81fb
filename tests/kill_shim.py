"""Kills a process at the n-th operation that changes the disk, and runs programs that do so at every one."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.programs import run

KILLED = 9

#: Functions through which a store or a plugin changes the disk.
OPERATIONS = (
    "open",
    "write",
    "fsync",
    "link",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "rename",
    "remove",
    "truncate",
)
#: A program that forks must have no threads.
ONE_THREAD = {"DYNAQUANT_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Shim:
    """Counts operations and ends the process before, after or in the middle of the n-th."""

    def __init__(self, fatal: int, moment: str) -> None:
        self.names: list[str] = []
        self.fatal = fatal
        self.moment = moment

    def install(self) -> None:
        """Wraps the functions of `os`."""
        for name in OPERATIONS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10: `Path` took them along
        for name in OPERATIONS[1:]:
            if hasattr(accessor, name):
                setattr(accessor, name, staticmethod(getattr(os, name)))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                return function(*args, **kwargs)
            self.names.append(name)
            fatal = len(self.names) == self.fatal
            if fatal and self.moment == "before":
                os._exit(KILLED)
            if fatal and self.moment == "torn":
                function(args[0], bytes(args[1])[: len(args[1]) // 2])
                os._exit(KILLED)
            result = function(*args, **kwargs)
            if fatal and self.moment == "after":
                os._exit(KILLED)
            return result

        return wrapper


def run_child(prepare: Callable[[], Callable[[], object]], fatal: int, moment: str) -> tuple[int, list[str]]:
    """Runs what ``prepare`` returns in a forked child, its n-th operation fatal (0: none).

    Returns the exit status and, if undisturbed, the operations; those of ``prepare`` itself do not count.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        act = prepare()
        shim = Shim(fatal, moment)
        shim.install()
        act()
        names = " ".join(shim.names)
        shim.fatal = 0
        os.write(write_end, names.encode())
        os._exit(0)
    os.close(write_end)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = os.read(read_end, 1 << 16).decode()
    os.close(read_end)
    return status, text.split()


def sweep(
    scenario: str,
    template: Path,
    prepare: Callable[[Path], Callable[[], object]],
    problems: Callable[[Path, bool], list[str]],
) -> dict[str, Any]:
    """An undisturbed run, then a kill before and after each of its operations and inside each write.

    Args:
        scenario: its name, for the report.
        template: the folder as it is before; each run gets a copy of it.
        prepare: makes what a run does from its folder.
        problems: every broken promise of a folder; its second argument says whether the run was undisturbed.
    """
    work = template.with_name("work")

    def run(fatal: int, moment: str) -> tuple[int, list[str], list[str]]:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work)
        status, operations = run_child(lambda: prepare(work), fatal, moment)
        return status, operations, problems(work, fatal == 0)

    status, operations, found = run(0, "before")
    broken = [f"undisturbed: {problem}" for problem in found]
    broken += [f"undisturbed: ended with {status}"] if status else []
    kills = 0
    for fatal, operation in enumerate(operations, start=1):
        for moment in ("before", "after", "torn")[: 3 if operation == "write" else 2]:
            status, _, found = run(fatal, moment)
            broken += [f"{moment} {operation} ({fatal}): {problem}" for problem in found]
            kills += status == KILLED
    return {"scenario": scenario, "operations": operations, "kills": kills, "broken": broken}


def report_of(module: str, scenario: str, folder: Path) -> dict[str, Any]:
    """What a program says of a scenario: operations and kills; there must be no broken promise in it."""
    done = run(["-m", module, scenario, folder], env=os.environ | ONE_THREAD)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["broken"] == []
    operations = report["operations"]
    assert report["kills"] == 2 * len(operations) + operations.count("write")
    return report
