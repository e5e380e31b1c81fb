"""Kills a process at every operation that changes the disk, and looks at the folders that are left.

Run as a program of its own (one thread, so that it can fork): ``crash_sweep.py SCENARIO FOLDER`` writes one
JSON object: operations of an undisturbed run, kills, and every broken promise.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.folder import PENDING
from tests.kill_shim import sweep
from tests.plugins.kit import checkpoint, clutter, exact_run, is_same, names_in, one_thread, state

NATIVE = "native.ckpt"
FOREIGN = "trainer_state.json"


def beside(root: Path) -> None:
    """Into a folder in which the framework has put files of its own."""
    run = exact_run()
    run.load(root / "b", weights_only=False)
    run.save(root / "theirs", 40, state(40))
    run.close()


def again(root: Path) -> None:
    """Into the folder that it was loaded from."""
    run = exact_run()
    run.load(root / "last", weights_only=False)
    run.save(root / "last", 40, state(40))
    run.close()


def other(root: Path) -> None:
    """Into a folder that holds another run's checkpoint of the same step and sequence."""
    run = exact_run()
    run.save(root / "other", 10, state(10, seed=9))
    run.wait()
    run.save(root / "last", 30, state(30, seed=9))
    run.close()


def copy(root: Path) -> None:
    """A second name for a checkpoint, where another is now."""
    run = exact_run()
    run.copy(root / "a", root / "last")
    run.close()


def remove(root: Path) -> None:
    """Of a folder."""
    run = exact_run()
    run.remove(root / "a")
    run.close()


def native(root: Path) -> None:
    """Where the framework's own file of that name is."""
    run = exact_run()
    run.load(root / "b", weights_only=False)
    run.save(root / NATIVE, 40, state(40))
    run.close()


#: Name -> (what is done, folders that it changes).
SCENARIOS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "beside": (beside, ("theirs",)),
    "again": (again, ("last",)),
    "other": (other, ("other", "last")),
    "copy": (copy, ("last",)),
    "remove": (remove, ("a",)),
    "native": (native, (NATIVE,)),
}

#: (step, seed) that a folder may hold, before or after.
HOLDS = {
    "a": [(10, 0)],
    "b": [(20, 0)],
    "last": [(30, 0), (40, 0), (30, 9), (10, 0)],
    "theirs": [(40, 0)],
    "other": [(10, 9)],
    NATIVE: [(40, 0)],
}


def prepare(template: Path) -> None:
    """Three folders of one chain, one with the framework's files, and a native checkpoint."""
    template.mkdir()
    run = exact_run()
    for step, name in ((10, "a"), (20, "b"), (30, "last")):
        run.save(template / name, step, state(step))
    run.close()
    (template / "theirs").mkdir()
    (template / "theirs" / FOREIGN).write_text("mine")
    (template / NATIVE).write_text("native")


def problems_after(work: Path, name: str, *, undisturbed: bool) -> list[str]:
    """Every promise that the folders break: whole or no checkpoint, never fewer, others untouched."""
    changed = SCENARIOS[name][1]
    found = [f"{path.name} is wrong" for path in folders(work) if not holds(path)]
    there = {path.name for path in folders(work)}
    expected = {"a", "b", "last"} - ({"a"} if name == "remove" else set())
    found += [f"{one} is gone" for one in expected - there]
    if undisturbed:
        found += [f"{one} is not there" for one in set(changed) - there if name != "remove"]
        found += [f"{one} holds {clutter(work / one)}" for one in there - {"theirs"} if clutter(work / one)]
    if (work / "theirs" / FOREIGN).read_text() != "mine":
        found.append("a file of the framework was touched")
    if name == "native":
        found += native_problems(work)
    return found + problems_going_on(work, changed[-1])


def native_problems(work: Path) -> list[str]:
    """The native file stays until what takes its name is whole."""
    path = work / NATIVE
    if path.is_file():
        return [] if path.read_text() == "native" else ["the native file was changed"]
    staged = [one for one in work.glob(f".{NATIVE}.*") if is_checkpoint(one) and holds(one, NATIVE)]
    return [] if is_checkpoint(path) or staged else ["neither the native file nor the checkpoint is there"]


def problems_going_on(work: Path, target: str) -> list[str]:
    """What is broken after the next good save into the same folder."""
    found = []
    run = exact_run()
    run.load(work / "b", weights_only=False)
    run.save(work / target, 50, state(50))
    run.close()
    if not is_same(checkpoint(work / target), state(50)):
        found.append("the next save is wrong")
    left = [name for name in clutter(work / target) if name != FOREIGN]
    rests = [name for name in names_in(work / target) if name.startswith("rest")]
    files = [name for name in names_in(work / target) if name.endswith(".dq")]
    if left or len(rests) != 1 or len(files) != 3 or (work / target / PENDING).exists():
        found.append(f"after the next save there is {names_in(work / target)}")
    return found


def folders(work: Path) -> list[Path]:
    return [path for path in work.iterdir() if not path.name.startswith(".") and is_checkpoint(path)]


def holds(path: Path, name: str | None = None) -> bool:
    """Whether a folder holds a state that was once saved into it."""
    found = checkpoint(path)
    return any(is_same(found, state(step, seed=seed)) for step, seed in HOLDS[name or path.name])


def swept(name: str, folder: Path) -> dict[str, Any]:
    """A scenario's report."""
    prepare(folder / "template")
    return sweep(
        name,
        folder / "template",
        lambda work: lambda: SCENARIOS[name][0](work),
        lambda work, undisturbed: problems_after(work, name, undisturbed=undisturbed),
    )


if __name__ == "__main__":
    one_thread()
    logging.disable(logging.WARNING)
    sys.stdout.write(json.dumps(swept(sys.argv[1], Path(sys.argv[2]))))
