"""The public surface is a list that is checked in; this compares the package with it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dynaquant_core as dq
from dynaquant_core import errors
from tests.project.tree import modules

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


#: Names of rooms that `dynaquant_core` itself does not pass on, written with their whole path.
ROOMS = "dynaquant_core."


def owner_of(dotted: str) -> tuple[Any, str]:
    """Whose ``__all__`` the name is in, and the rest of the name."""
    if not dotted.startswith(ROOMS):
        return dq, dotted
    path, rest = dotted.split("."), []
    while path[-1][0].isupper() or ".".join(path) not in modules():
        rest.insert(0, path.pop())
    return importlib.import_module(".".join(path)), ".".join(rest)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    bare = inspect.Parameter.empty
    found = inspect.signature(function).parameters.values()
    return [p.replace(annotation=bare) for p in found if p.name != "self"]


@pytest.mark.parametrize("line", LINES)
def test_name_is_public_and_takes_these_parameters(line: str) -> None:
    dotted, bracket, _ = line.partition("(")
    owner, rest = owner_of(dotted)
    assert rest.split(".")[0] in owner.__all__
    for name in rest.split("."):
        owner = getattr(owner, name)
    if not bracket:
        return
    wanted = parameters(eval(f"lambda {line[line.index('(') + 1 : -1]}: None"))
    found = {p.name: p for p in parameters(owner)}
    extra = set(found) - {p.name for p in wanted}
    assert [found.get(p.name) for p in wanted] == wanted
    assert all(found[name].kind is inspect.Parameter.KEYWORD_ONLY for name in extra), "room is keyword-only"


def test_nothing_else_is_public() -> None:
    listed = {line.partition("(")[0].split(".")[0] for line in LINES if not line.startswith(ROOMS)}
    family = set(errors.__all__)
    assert set(dq.__all__) - family - {"__version__"} == listed - {"DynaQuantError"}


def test_nothing_else_is_public_in_rooms_that_are_listed() -> None:
    listed: dict[Any, set[str]] = {}
    for line in LINES:
        if line.startswith(ROOMS):
            room, rest = owner_of(line.partition("(")[0])
            listed.setdefault(room, set()).add(rest.split(".")[0])
    assert listed
    for room, names in listed.items():
        assert set(room.__all__) == names


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
