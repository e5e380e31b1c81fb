"""An output folder with checkpoints of several runs, and one run that lies in several folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from dynaquant_core.plugins import PluginOptions, PluginRun
from tests.cli.words import Shell


def trained(run: PluginRun, folder: Path, steps: Iterable[int], bias: float = 0.0) -> None:
    """Checkpoints of one run whose weights have a mean of ``bias``, and a little more every step."""
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    weights += bias - weights.mean()
    for step in steps:
        run.save(folder / f"checkpoint-{step}", step, {"model": {"w": weights + 0.001 * step}, "step": step})
    run.wait()


def new_run(**options: int) -> PluginRun:
    return PluginRun(PluginOptions(**options), framework="none")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two runs of a sweep, each in a folder of its own."""
    for name, steps, bias in (("a", (10, 20, 30), 0.0), ("b", (10, 20), 100.0)):
        trained(new_run(), tmp_path / "sweep" / name, steps, bias)
    return tmp_path / "sweep"


def mean_of(path: Path) -> float:
    return float(torch.load(path)["model"]["w"].mean())


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("show", "--step", "20"),
        ("show", "--tensors"),
        ("diff", "20", "30"),
        ("diff", "30", "30"),
        ("export", "-o", "out.pt"),
        ("export", "--step", "10", "-o", "out.pt"),
        ("export", "--best", "-o", "out.pt"),
    ],
    ids=" ".join,
)
def test_of_two_runs_none_is_taken_for_the_other(
    shell: Shell, sweep: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = shell(words[0], sweep, *words[1:])
    assert outcome.status == 1
    assert all(name in outcome.error() for name in ("'a'", "'b'", "of several runs"))
    assert not (tmp_path / "out.pt").exists()


def test_each_of_two_runs_can_be_read(shell: Shell, sweep: Path, tmp_path: Path) -> None:
    for name, bias in (("a", 0.0), ("b", 100.0)):
        assert shell("export", sweep / name, "--step", 20, "-o", tmp_path / "out.pt").status == 0
        assert mean_of(tmp_path / "out.pt") == pytest.approx(bias, abs=0.5)
    assert shell("export", sweep, "--step", 30, "-o", tmp_path / "out.pt").status == 0  # there is but one
    assert "5 checkpoints in 5 folders" in shell("verify", sweep).out


def test_log_lists_the_checkpoints_of_all_runs(shell: Shell, sweep: Path) -> None:
    told = shell("log", sweep, "--json").json()["checkpoints"]
    listed = [(entry["step"], str(Path(entry["folder"]).relative_to(sweep))) for entry in told]
    assert sorted(listed) == sorted(
        (int(folder.name.split("-")[1]), str(folder.relative_to(sweep))) for folder in sweep.glob("*/*")
    )
    outcome = shell("log", sweep)
    assert "a/checkpoint-20" in outcome.out
    assert "b/checkpoint-20" in outcome.out
    assert "5 checkpoints" in outcome.out


def test_two_runs_that_began_at_one_checkpoint_are_two(shell: Shell, tmp_path: Path) -> None:
    output = tmp_path / "output"
    trained(new_run(), output / "start", (10,))
    for name, bias in (("a", 0.0), ("b", 0.01)):
        run = new_run()
        run.load(output / "start" / "checkpoint-10")
        trained(run, output / name, (20, 30), bias)
    assert "'a'" in shell("export", output, "-o", tmp_path / "out.pt").error()


@pytest.mark.parametrize("max_chain", [0, 8])
def test_one_run_may_have_several_folders(shell: Shell, tmp_path: Path, max_chain: int) -> None:
    """The best in one and the newest in another, a copy, and a run that was resumed elsewhere."""
    output, run = tmp_path / "output", new_run(max_chain=max_chain)
    for step in (10, 20, 30):
        trained(run, output / "every", (step,))
        if step != 30:
            run.copy(output / "every" / f"checkpoint-{step}", output / "best" / f"checkpoint-{step}")
    run.close()
    shutil.copytree(output / "every" / "checkpoint-10", output / "kept" / "checkpoint-10")
    assert shell("show", output, "--json").json()["step"] == 30
    assert shell("diff", output, 10, 20).status == 0
    assert len(shell("log", output, "--json").json()["checkpoints"]) == 3


def test_a_run_that_was_resumed_elsewhere_goes_on(shell: Shell, tmp_path: Path) -> None:
    """It did step 30 again, from what it had saved at step 20: the later one stands."""
    output, run = tmp_path / "output", new_run()
    trained(run, output / "version_0", (10, 20, 30))
    resumed = new_run()
    resumed.load(output / "version_0" / "checkpoint-20")
    trained(resumed, output / "version_1", (30, 40))
    assert shell("show", output, "--json").json()["step"] == 40
    told = shell("show", output, "--step", 30, "--json").json()
    assert Path(told["folder"]).parent.name == "version_1"
