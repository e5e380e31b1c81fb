"""CONTRIBUTING.md's recipe for a method, followed in a package of its own: nothing else has to be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.experiments.config import expand, load_experiment, shipped_configs
from dynaquant_core.methods import Method, method_names, registry, resolve_method
from tests.methods import method_kit as kit
from tests.methods.toy_method import Rounding, Step

POINTS = [Step(step=0.1), Step(step=0.8), Step(step=0.0)]


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installer leaves behind of a package that announces the method."""
    folder = tmp_path / "site" / "dynaquant_rounding-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: dynaquant-rounding\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINTS}]\nrounding = tests.methods.toy_method:Rounding\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))


def test_its_name_resolves_with_its_options() -> None:
    assert "rounding" in method_names()
    method = resolve_method({"name": "rounding", "reach": 7})
    assert isinstance(method, Rounding)
    assert isinstance(method, Method)
    assert method.options() == {"reach": 7}
    with pytest.raises(dq.UnknownMethodError, match="did you mean 'rounding'"):
        resolve_method("roundin")


def test_it_passes_the_kit() -> None:
    method = resolve_method("rounding")
    for restores in (False, True):
        kit.check_chain(method, POINTS, restores=restores)
    kit.check_space(method)
    kit.check_tiny(method, POINTS)
    for dtype in kit.FLOATS:
        kit.check_dtypes(method, POINTS, dtype)
    for point in POINTS:
        pair = kit.delta(method, point)
        kit.check_detached(method, point)
        kit.check_names(method, *pair)
        for saved in pair:
            kit.check_readers_memory(saved)


@pytest.mark.parametrize("threshold", [0.3, 0.001])
def test_a_search_keeps_a_threshold_with_it(tmp_path: Path, threshold: float) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(256, 16)
    targets = torch.tanh(inputs @ torch.randn(16, 16)) + 0.1 * torch.randn(256, 16)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def evaluate() -> float:
        with torch.no_grad():
            return float((model(inputs) - targets).square().mean())

    store = tmp_path / "store"
    with dq.Checkpointer(
        store, model, optimizer, every=5, evaluate=evaluate, threshold=threshold, method="rounding"
    ) as checkpointer:
        for _ in range(15):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            checkpointer.step()
    true = evaluate()
    saved = dq.CheckpointStore(store)
    assert saved.info(15).method == "rounding"
    assert saved.info(15).met
    model.load_state_dict(saved.load(15)["model"])
    assert (evaluate() - true) / true <= threshold


def test_a_yaml_file_runs_it_against_another() -> None:
    grid = "grid={method: [lattice, {name: rounding, reach: 3}]}"
    runs = expand(load_experiment(shipped_configs()["quickstart"], [grid]))
    found = [resolve_method(run.method) for run in runs]
    assert [(method.name, method.options()) for method in found] == [
        ("lattice", {}),
        ("rounding", {"reach": 3}),
    ]
