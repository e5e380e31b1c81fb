"""Kills a save that ends in a super step at every operation that changes the disk, and looks at what is left.

Run as a program of its own, as `crash_runner` is: ``super_step_runner.py SCENARIO FOLDER``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.store import CheckpointStore
from tests.kill_shim import sweep
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


def save_new(work: Path, name: str) -> Callable[[], object]:
    """The save that ends in a super step, ready to run."""
    store = lc_store(work, 3, **SCENARIOS[name])
    store.load()
    return lambda: saved(store, NEW[name])


def swept(name: str, folder: Path) -> dict[str, Any]:
    """A scenario's report."""
    states = prepare(folder, name)

    def problems(work: Path, undisturbed: bool) -> list[str]:
        merged = 20 not in CheckpointStore(work).steps()
        missing = ["no super step was made"] if undisturbed and not merged else []
        return missing + problems_after(work, name, states)

    return sweep(name, folder / "template", lambda work: save_new(work, name), problems)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(swept(sys.argv[1], Path(sys.argv[2]))))
