"""Kills a process at every operation that changes the disk, and looks at what is left.

Run as a program of its own (one thread, so that it can fork): ``crash_runner.py SCENARIO FOLDER`` writes one
JSON object: operations of an undisturbed run, kills, and every broken promise.
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
from tests.store.kit import exact_store, filled, is_same, leftovers, small_state

FOREIGN = "mine.txt"

#: What a step may hold: the state saved first, or the one that supersedes it.
SEEDS = (0, 9)


def first(store: CheckpointStore) -> None:
    """Into a folder that does not exist."""
    store.save(10, small_state(10))


def delta(store: CheckpointStore) -> None:
    """On a chain."""
    store.save(40, small_state(40))


def again(store: CheckpointStore) -> None:
    """A step that is there already."""
    store.save(30, small_state(30, seed=9))


def compact(store: CheckpointStore) -> None:
    """Re-bases and retires."""
    store.compact()


def delete(store: CheckpointStore) -> None:
    """Re-bases what builds on the step."""
    store.delete(10)


def pin(store: CheckpointStore) -> None:
    """Replaces the pins."""
    store.pin(20)


#: Name -> (what is done, steps before, options of the store).
SCENARIOS: dict[str, tuple[Callable[[CheckpointStore], None], tuple[int, ...], dict[str, Any]]] = {
    "first": (first, (), {}),
    "delta": (delta, (10, 20, 30), {}),
    "key": (delta, (10, 20, 30), {"max_chain": 2}),
    "retention": (delta, (10, 20, 30), {"max_chain": 2, "keep_last": 1}),
    "again": (again, (10, 20, 30), {"keep_last": 2}),
    "compact": (compact, (10, 20, 30), {"keep_last": 2}),
    "delete": (delete, (10, 20, 30), {}),
    "pin": (pin, (10, 20, 30), {}),
}

#: What each scenario may remove for good.
MAY_GO = {"retention": {10, 20, 30}, "again": {10, 20}, "compact": {10}, "delete": {10}}


def prepare(template: Path, before: tuple[int, ...]) -> None:
    """The folder as it is when the scenario begins, a dead save's leftover and a foreign file included."""
    template.mkdir()
    if before:
        filled(template / "store", before)
        (template / "store" / FOREIGN).write_text("mine")
        (template / "store" / f"step-000000005-seq-000000.dq.tmp-{'a' * 32}").write_bytes(b"half")


def problems_after(path: Path, name: str) -> list[str]:
    """Every promise (atomic, never fewer, falls back, clean) that the folder breaks."""
    _, before, options = SCENARIOS[name]
    found = []
    store = exact_store(path, **options)
    steps = set(store.steps())
    new = {"first": {10}, "delta": {40}, "key": {40}, "retention": {40}}.get(name, set())
    if not set(before) - MAY_GO.get(name, set()) <= steps <= set(before) | new:
        found.append(f"listed {sorted(steps)}")
    if not new & steps and name in ("delta", "key", "retention") and steps != set(before):
        found.append(f"fewer than before without the new one: {sorted(steps)}")
    found += [f"step {step} is wrong" for step in steps if not is_one_of(store.load(step), step)]
    newest = store.newest()
    if before and (newest is None or newest.step < max(before) or newest.skipped):
        found.append(f"newest is {newest}")
    if problems := store.verify(deep=True):
        found.append(f"verify: {problems}")
    if len(leftovers(path)) > 2:
        found.append(f"leftovers {leftovers(path)}")
    return found + problems_going_on(path, bool(steps), bool(before), options)


def problems_going_on(
    path: Path, filled_before: bool, has_foreign: bool, options: dict[str, Any]
) -> list[str]:
    """What is broken after the next good save."""
    store = exact_store(path, **options)
    if filled_before:
        store.load()
    store.save(50, small_state(50))
    store.close()
    found = []
    if not is_same(exact_store(path).load(), small_state(50)):
        found.append("the next save is wrong")
    if leftovers(path):
        found.append(f"leftovers after the next save: {leftovers(path)}")
    if has_foreign and (path / FOREIGN).read_text() != "mine":
        found.append("a foreign file was touched")
    return found


def is_one_of(state: Any, step: int) -> bool:
    """Whether a state is one that was saved for the step."""
    return any(is_same(state, small_state(step, seed=seed)) for seed in SEEDS)


def ready(work: Path, name: str) -> Callable[[], object]:
    """What the scenario does, its store loaded."""
    act, before, options = SCENARIOS[name]
    store = exact_store(work / "store", **options)
    if before:
        store.load()
    return lambda: act(store)


def swept(name: str, folder: Path) -> dict[str, Any]:
    """A scenario's report."""
    prepare(folder / "template", SCENARIOS[name][1])
    return sweep(
        name,
        folder / "template",
        lambda work: ready(work, name),
        lambda work, _: problems_after(work / "store", name),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(swept(sys.argv[1], Path(sys.argv[2]))))
