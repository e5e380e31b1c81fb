"""Scripts of benchmarks/: what they say of a store that a user has, and of words that they do not know."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.format import FileReader

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

Load = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads a script by its name; it finds what stands beside it, as when it is run."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_entropy_of_a_store_whose_run_was_restored(script: Load, tmp_path: Path) -> None:
    """From a restore on codes are drawn, and a stream of such codes has contexts of its own."""
    generator = torch.Generator().manual_seed(0)
    weights = {"fc.weight": torch.randn(256, 256, generator=generator)}
    with dq.CheckpointStore(tmp_path, method="dynaquant") as store:
        for step in range(6):
            if step == 3:
                weights = store.load()["model"]
            store.save(step, {"model": weights}, config=dq.Config(bins=16))
            weights["fc.weight"] += 0.003 * torch.randn(256, 256, generator=generator)
    kinds = []
    for path in tmp_path.glob("*.dq"):
        with FileReader(path) as reader:
            kinds += [stream.kind for stream in reader.index.streams]
    assert {"codes", "drawn"} < set(kinds)
    entropy = script("entropy")
    found = list(entropy.streams(tmp_path))
    assert len(found) == kinds.count("codes") + kinds.count("drawn")
    assert all(one.payload >= one.information for one in found), (
        "each under the contexts that it was coded with"
    )
    assert entropy.summary(tmp_path)["ratio"] < 1.1


def test_series_tells_the_scale_that_it_ran(script: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no try comes near enough to the error that was asked for."""
    series = script("series")
    monkeypatch.setattr(series, "NEAR", 0.0)
    state = {"model": {"fc.weight": torch.randn(64, 64, generator=torch.Generator().manual_seed(0))}}
    states = [series.state_of(state["model"])]
    scale, found = series.matched(states, 0.05)
    assert series.run_of(states, dq.LatticeConfig(scale=scale)).error == found.error


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("lattice", "'lattice'"),
        ("lattice@", "'lattice@'"),
        ("lattice@much", "'lattice@much'"),
        ("lattice@nan", "'lattice@nan'"),
        ("lattice@1", "'lattice@1'"),
        ("steps=30", "'steps'"),
        ("latice@0.01", "'latice'"),
        ("lattice,bins=3@0.01", "'bins'"),
        ("dynaquant,paper@0.05", "KEY=VALUE, as in lattice,max_chain=4@0.01, got 'paper'"),
        ("sigma=0.1,moments=@0.05", "got 'moments='"),
    ],
)
def test_sweep_says_which_word_is_no_store(
    script: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, told: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep.py", "gpt_shakespeare", "lattice@0.01", word])
    with pytest.raises(SystemExit) as ended:
        script("sweep").main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_sweep_of_a_method_with_nothing_to_set(script: Load, tiny_file: Path, tmp_path: Path) -> None:
    """It failed after the whole training."""
    stores = ["none@0.05", "lattice@0.05"]
    bare, searched = script("sweep").sweep(str(tiny_file), ["steps=10"], stores, tmp_path / "stores")
    assert (bare["store"], bare["points"]) == ("none@0.05", "-")
    assert float(searched["points"]) > 0
