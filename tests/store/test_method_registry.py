"""Names of methods: built in, installed, unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.methods import Method, method_names, registry, resolve_method
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.qd import Qd, QdConfig
from dynaquant_core.store import CheckpointStore
from tests.store.kit import is_same, small_state


class Mine(Exact):
    """A method of another package."""

    name = "mine"

    def __init__(self, *, strength: int = 1) -> None:
        super().__init__()
        self.strength = strength

    def options(self) -> dict[str, Any]:
        return {"strength": self.strength}


def install(monkeypatch: pytest.MonkeyPatch, points: Mapping[str, str]) -> None:
    """Pretends that packages with these entry points are installed."""
    found = [EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)


def test_every_built_in_method_follows_the_protocol() -> None:
    for name in registry.BUILT_IN:
        method = resolve_method(name)
        assert isinstance(method, Method)
        assert method.name == name
        space = method.space(gradients=True)
        config = space.default
        assert method.config(config.as_dict()) == config
        assert type(space.beyond[-1]) is type(config)


def test_the_default_and_options() -> None:
    assert resolve_method().name == registry.DEFAULT_METHOD
    paper = resolve_method({"name": "dynaquant", "coder": "paper"})
    assert paper.options()["coder"] == "paper"
    assert resolve_method(paper) is paper


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(dq.UnknownMethodError, match="did you mean 'dynaquant'"):
        resolve_method("dynquant")
    with pytest.raises(dq.UnknownMethodError, match="known: lattice, dynaquant"):
        resolve_method("???")
    with pytest.raises(dq.ConfigError, match="coder"):
        resolve_method({"name": "dynaquant", "codr": "paper"})
    with pytest.raises(dq.ConfigError, match="options"):
        resolve_method({"name": "exact", "strength": 3})
    with pytest.raises(dq.ConfigError, match="method object"):
        resolve_method(Exact)  # type: ignore[arg-type]


class Misread(Mine):
    """A method that fails on what it wrote itself."""

    name = "misread"

    def decode(self, *arguments: Any, **options: Any) -> Any:
        raise KeyError("kaboom")


class Forgetful(Qd):
    """A method that cannot write what it holds as a key, and drafts it anew with fewer levels."""

    name = "forgetful"
    rekey = None  # type: ignore[assignment]


def test_what_was_written_anew_exactly_still_names_the_runs_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, {"forgetful": "tests.store.test_method_registry:Forgetful"})
    torch.manual_seed(0)  # one matrix in three keeps its levels, and with them its method
    state, config = {"weight": torch.randn(200, 200)}, QdConfig(maximum=256, minimum=8)
    with CheckpointStore(tmp_path, method="forgetful") as store:
        for step in (1, 2):
            store.save(step, state, config=config)
        before = store.load()
    with CheckpointStore(tmp_path, max_chain=0) as store:
        store.compact()
        assert store.info(2).method == "exact"
    with CheckpointStore(tmp_path) as store:
        assert is_same(store.load(), before)
        assert store.save(3, state, config=config).method == "forgetful"


def test_a_method_and_its_entry_point_have_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"yours": "tests.store.test_method_registry:Mine"})
    with pytest.raises(dq.ConfigError, match="'yours' calls itself 'mine'"):
        resolve_method("yours")


def test_what_an_installed_method_raises_is_told_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, {"misread": "tests.store.test_method_registry:Misread"})
    store = CheckpointStore(tmp_path, method="misread", moments="exact")
    store.save(1, small_state(1))
    said = r"the method 'misread' fails to read it \(KeyError: 'kaboom'\)"
    with pytest.raises(dq.CorruptFileError, match=said):
        store.load(1)
    (problem,) = store.verify(deep=True)
    assert re.search(said, problem.reason)


def test_an_installed_method_saves_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"mine": "tests.store.test_method_registry:Mine", "dynaquant": "nowhere:Stolen"})
    assert method_names()[-1] == "mine"
    assert resolve_method("dynaquant").__class__.__name__ == "DynaQuant"
    store = CheckpointStore(tmp_path, method={"name": "mine", "strength": 3}, moments="exact")
    store.save(1, small_state(1))
    store.save(2, small_state(2))
    info = CheckpointStore(tmp_path).info(2)
    assert (info.method, info.options, info.kind) == ("mine", {"strength": 3}, "delta")
    assert is_same(CheckpointStore(tmp_path).load(), small_state(2))


def test_a_file_of_a_method_that_is_not_installed_is_not_passed_over(tmp_path: Path) -> None:
    """Going back to an older checkpoint would lose work that a package brings back."""
    store = CheckpointStore(tmp_path, method=Mine(), moments="exact")
    store.save(1, small_state(1))
    assert is_same(store.load(), small_state(1))  # the object itself reads what it wrote
    other = CheckpointStore(tmp_path)
    with pytest.raises(dq.UnknownMethodError, match="mine"):
        other.load()
    assert other.info(1).method == "mine"
    assert "mine" in str(other.verify(deep=True)[0])


def test_an_installed_method_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"broken": "no_such_package:thing"})
    with pytest.raises(dq.DependencyError, match="no_such_package"):
        resolve_method("broken")
