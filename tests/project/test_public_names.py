"""The public surface is a list that is checked in; this compares the package with it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core import errors
from tests.project.tree import integrations, modules

LINES = [
    line
    for line in (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
INFO_FIELDS = {
    "step",
    "sequence",
    "kind",
    "base_step",
    "method",
    "config",
    "raw_bytes",
    "stored_bytes",
    "ratio",
}
INFO_FIELDS |= {"parts", "quality", "degradation", "met", "evaluations", "seconds", "skipped"}


#: Every package: the core's, and those of the plugins.
PACKAGES = {name for name, path in (modules() | integrations()).items() if path.name == "__init__.py"}

#: Names of plugins, and of rooms that `dynaquant_core` itself does not pass on, stand with their whole path.
ROOMS = tuple(f"{name}." for name in sorted(PACKAGES) if "." not in name)


def room_of(dotted: str) -> tuple[str, str]:
    """In which package's ``__all__`` the name is, and the rest of the name."""
    if not dotted.startswith(ROOMS):
        return "dynaquant_core", dotted
    path, rest = dotted.split("."), []
    while ".".join(path) not in PACKAGES:  # not modules: `samo.wrap` is a function out of one of that name
        rest.insert(0, path.pop())
    return ".".join(path), ".".join(rest)


def imported(room: str) -> Any:
    """The package; a test of a plugin whose framework is not installed is skipped."""
    framework = room.partition(".")[0].removeprefix("dynaquant_")
    if framework != "core" and find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed in this environment")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what frameworks say when they are imported
        return importlib.import_module(room)


def listed_rooms() -> dict[str, set[str]]:
    """Package -> its public names, of those that are written with their path."""
    listed: dict[str, set[str]] = {}
    for line in LINES:
        if line.startswith(ROOMS):
            room, rest = room_of(line.partition("(")[0])
            listed.setdefault(room, set()).add(rest.split(".")[0])
    return listed


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    bare = inspect.Parameter.empty
    found = inspect.signature(function).parameters.values()
    return [p.replace(annotation=bare) for p in found if p.name != "self"]


@pytest.mark.parametrize("line", LINES)
def test_name_is_public_and_takes_these_parameters(line: str) -> None:
    dotted, bracket, _ = line.partition("(")
    room, rest = room_of(dotted)
    owner = imported(room)
    assert rest.split(".")[0] in owner.__all__
    for name in rest.split("."):
        owner = getattr(owner, name)
    if not bracket:
        return
    wanted = parameters(eval(f"lambda {line[line.index('(') + 1 : -1]}: None", {"torch": torch}))
    found = {p.name: p for p in parameters(owner)}
    extra = set(found) - {p.name for p in wanted}
    assert [found.get(p.name) for p in wanted] == wanted
    assert all(found[name].kind is inspect.Parameter.KEYWORD_ONLY for name in extra), "room is keyword-only"


def test_nothing_else_is_public() -> None:
    listed = {line.partition("(")[0].split(".")[0] for line in LINES if not line.startswith(ROOMS)}
    family = set(errors.__all__)
    assert set(dq.__all__) - family - {"__version__"} == listed - {"DynaQuantError"}


@pytest.mark.parametrize("room", sorted(listed_rooms()))
def test_nothing_else_is_public_in_rooms_that_are_listed(room: str) -> None:
    assert set(imported(room).__all__) == listed_rooms()[room]


def test_rooms_that_a_user_imports_by_their_path_are_listed() -> None:
    """What a training is told of `comm` and `memory`, and every plugin."""
    systems = [name for name in PACKAGES if re.fullmatch(r"dynaquant_core\.(comm|memory)(\.\w+)?", name)]
    told = {name for name in systems if getattr(importlib.import_module(name), "__all__", [])}
    plugins = {room.rstrip(".") for room in ROOMS} - {"dynaquant_core"}
    assert set(listed_rooms()) == told | plugins


def test_every_error_of_the_family_is_reachable_from_the_package() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), dq.DynaQuantError)


def test_checkpoint_info_tells_what_it_promises() -> None:
    told = {name for name, _ in inspect.getmembers(dq.CheckpointInfo)}
    told |= {field.name for field in dataclasses.fields(dq.CheckpointInfo)}
    assert told >= INFO_FIELDS


@pytest.mark.parametrize("name", sorted(modules()))
def test_all_lists_only_names_that_exist(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert [entry for entry in listed if not hasattr(module, entry)] == []
    assert len(set(listed)) == len(listed)
