"""Kills a save that ends in a super step at every operation that changes the disk, and looks at what is left.

Run as a program of its own, as `crash_runner` is: ``super_step_runner.py SCENARIO FOLDER``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.store import CheckpointStore
from tests.kill_shim import KILLED, Shim
from tests.store.kit import is_same, leftovers
from tests.store.merging import expected, lc_store, saved, state_of

#: Name -> options; the save of `NEW` makes a super step of the three links below the kept ones.
SCENARIOS: dict[str, dict[str, Any]] = {"newest": {"keep_last": 1}, "below": {"keep_last": 2}}
BEFORE = {"newest": (10, 20, 30), "below": (10, 20, 30, 40)}
NEW = {"newest": 40, "below": 50}


def prepare(folder: Path, name: str) -> dict[int, Any]:
    """Makes the store as it is before, and what a reader must get of each step."""
    with lc_store(folder / "template", 3, **SCENARIOS[name]) as store:
        saved(store, *BEFORE[name])
    return expected(folder / "twin", (*BEFORE[name], NEW[name]))


def run_child(work: Path, name: str, fatal: int, moment: str) -> tuple[int, list[str]]:
    """Saves in a forked child; returns its exit status and, if undisturbed, its operations."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        store = lc_store(work, 3, **SCENARIOS[name])
        store.load()
        shim = Shim(fatal, moment)
        shim.install()
        saved(store, NEW[name])
        names = " ".join(shim.names)
        shim.fatal = 0
        os.write(write_end, names.encode())
        os._exit(0)
    os.close(write_end)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = os.read(read_end, 1 << 16).decode()
    os.close(read_end)
    return status, text.split()


def problems_after(path: Path, name: str, states: dict[int, Any]) -> list[str]:
    """Every promise that the folder breaks."""
    store = CheckpointStore(path)
    steps, newest = store.steps(), store.newest()
    wrong = [step for step in steps if not is_same(store.load(step), states[step])]
    found = [f"step {step} is wrong" for step in wrong]
    if newest is None or newest.skipped or newest.step < BEFORE[name][-1]:
        found.append(f"newest is {newest}")
    wanted = {*BEFORE[name], NEW[name]} if newest is None else range(newest.step, 0, -10)
    lost = set(list(wanted)[: SCENARIOS[name]["keep_last"]]) - set(steps)
    found += [f"lost {sorted(lost)}"] if lost else []
    if problems := store.verify(deep=True):
        found.append(f"verify: {problems}")
    if len(leftovers(path)) > 1:
        found.append(f"leftovers {leftovers(path)}")
    return found + problems_going_on(path, name)


def problems_going_on(path: Path, name: str) -> list[str]:
    """What is broken after the next save."""
    with lc_store(path, 3, **SCENARIOS[name]) as store:
        store.load()
        store.save(60, state_of(60), config={"bits": "exact"})
    found = []
    if not is_same(CheckpointStore(path).load()["model"], state_of(60)["model"]):
        found.append("the next save is wrong")
    return found + [f"left over after the next save: {name}" for name in leftovers(path)]


def sweep(name: str, folder: Path) -> dict[str, Any]:
    """An undisturbed run, then a kill before and after each of its operations and inside each write."""
    states, work, kills = prepare(folder, name), folder / "work", 0
    shutil.copytree(folder / "template", work)
    status, operations = run_child(work, name, 0, "before")
    steps = CheckpointStore(work).steps()
    broken = [] if status == 0 and 20 not in steps else [f"ended with {status}, steps {steps}"]
    broken += [f"undisturbed: {problem}" for problem in problems_after(work, name, states)]
    shutil.rmtree(work)
    for fatal, operation in enumerate(operations, start=1):
        for moment in ("before", "after", "torn")[: 3 if operation == "write" else 2]:
            shutil.copytree(folder / "template", work)
            status, _ = run_child(work, name, fatal, moment)
            found = problems_after(work, name, states)
            broken += [f"{moment} {operation} ({fatal}): {problem}" for problem in found]
            shutil.rmtree(work)
            kills += status == KILLED
    return {"scenario": name, "operations": operations, "kills": kills, "broken": broken}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(sweep(sys.argv[1], Path(sys.argv[2]))))
