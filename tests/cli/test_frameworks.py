"""The commands on what a framework's plugin leaves: an output folder full of checkpoints, and one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from dynaquant_core.files import save_file
from dynaquant_core.plugins import PluginOptions, PluginRun
from dynaquant_core.store.exporters import taken
from tests.cli.test_look import flip
from tests.cli.words import Shell, training_state
from tests.plugins.kit import Gauge

STEPS = (10, 20, 30)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of a chain, the newest under a second name, with a framework's files beside them."""
    output = tmp_path_factory.mktemp("framework") / "output"
    run, generator = PluginRun(PluginOptions(), framework="none"), torch.Generator().manual_seed(0)
    for step in STEPS:
        state = training_state()
        for tensor in state["model"].values():  # checkpoints of one run resemble each other
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.001)
        run.save(output / f"checkpoint-{step}", step, {**state, "callbacks": {(1, 2): step}})
    run.copy(output / "checkpoint-30", output / "last")
    run.close()
    (output / "logs").mkdir()
    (output / "logs" / "metrics.csv").write_text("loss\n")
    (output / "checkpoint-10" / "trainer_state.json").write_text("{}")
    return output


@pytest.fixture
def output(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change; hard links become files."""
    return Path(shutil.copytree(original, tmp_path / "output"))


def test_log_lists_every_checkpoint_with_its_folder(shell: Shell, original: Path) -> None:
    outcome = shell("log", original)
    assert outcome.status == 0
    assert all(f"checkpoint-{step}" in outcome.out for step in STEPS)
    assert "3 checkpoints" in outcome.out
    assert "counted once" in outcome.out
    told = shell("log", original, "--json").json()
    assert [entry["step"] for entry in told["checkpoints"]] == list(STEPS)
    assert [Path(entry["folder"]).name for entry in told["checkpoints"]] == [
        "checkpoint-10",
        "checkpoint-20",
        "checkpoint-30",
    ]
    assert [entry["base_step"] for entry in told["checkpoints"]] == [None, 10, 20]
    assert told["disk"]["linked"] < told["disk"]["copied"] / 2


def test_a_file_beside_the_checkpoints_hides_none_of_them(shell: Shell, output: Path, tmp_path: Path) -> None:
    """`save_file(model, output / "final.dq")` is a likely end of a run."""
    save_file({"w": torch.ones(3)}, output / "final.dq")
    assert shell("log", output, "--json").json()["checkpoints"][-1]["step"] == 30
    assert shell("verify", output).status == 0
    assert shell("export", output, "-o", tmp_path / "out.pt").status == 0


def test_log_of_one_folder_lists_what_it_stands_on(shell: Shell, original: Path) -> None:
    told = shell("log", original / "checkpoint-20", "--json").json()["checkpoints"]
    assert [entry["step"] for entry in told] == [10, 20]
    assert shell("log", original / "checkpoint-20").status == 0


def test_log_says_which_folder_cannot_be_read(shell: Shell, output: Path) -> None:
    (output / "checkpoint-20" / "dynaquant.json").write_text("{")
    outcome = shell("log", output)
    assert outcome.status == 0
    assert "checkpoint-20" in outcome.err
    assert "2 checkpoints" in outcome.out
    shown = shell("show", output, "--json")
    assert [(entry["name"], entry["step"]) for entry in shown.json()["skipped"]] == [("checkpoint-20", 20)]
    for name in ("checkpoint-30", "last"):
        (output / name / "dynaquant.json").write_text("{")
    exported = shell("export", output, "-o", output / "x.pt")
    assert (exported.status, "step 10" in exported.out) == (0, True)
    for name in ("checkpoint-20", "checkpoint-30", "last"):
        assert f"{name}/dynaquant.json" in "".join(exported.err.split())
    assert exported.err.count("passed over a checkpoint that cannot be read") == 3
    for folder in output.glob("*/dynaquant.json"):
        folder.write_text("{")
    assert "none of its" in shell("log", output).error()
    assert "none of its" in shell("show", output).error()


def test_show_takes_the_newest_or_the_named_step(shell: Shell, original: Path) -> None:
    assert shell("show", original, "--json").json()["step"] == 30
    told = shell("show", original, "--step", 20, "--tensors", "--json").json()
    assert Path(told["folder"]).name == "checkpoint-20"
    assert sum(entry["raw_bytes"] for entry in told["tensors"]) == told["raw_bytes"]
    assert "checkpoint-20" in shell("show", original, "--step", 20).out
    assert "10, 20, 30" in shell("show", original, "--step", 21).error()
    one = original / "checkpoint-30"
    assert shell("show", one, "--json").json()["step"] == 30
    assert shell("show", one, "--step", 10, "--json").json()["kind"] == "key"


def test_a_named_folder_never_falls_back(shell: Shell, output: Path) -> None:
    folder = output / "checkpoint-30"
    (max(folder.glob("*.dq"))).write_bytes(b"")
    assert "step-000000030" in shell("show", folder).error()
    assert shell("export", folder, "-o", output / "x.pt").status == 1


def test_verify_reads_every_folder(shell: Shell, output: Path) -> None:
    assert "3 checkpoints in 4 folders checked" in shell("verify", output, "--deep").out
    flip(min((output / "checkpoint-20").glob("*.dq")))
    (output / "last" / "rest.pt").write_bytes(b"x")
    outcome = shell("verify", output, "--json")
    assert outcome.status == 1
    problems = outcome.json()["problems"]
    assert len(problems) == 2
    assert problems[0].startswith("checkpoint-20: step-000000010")
    assert problems[1].startswith("last: ")
    assert shell("verify", output / "checkpoint-20").status == 1
    assert shell("verify", output / "checkpoint-10").status == 0


def test_diff_between_two_folders(shell: Shell, original: Path) -> None:
    told = shell("diff", original, 10, 30, "--json").json()["tensors"]
    changes = {entry["name"]: entry["change"] for entry in told if entry["name"].startswith("model")}
    assert "moved" in changes.values()
    assert set(changes.values()) <= {"moved", "same"}  # a small tensor may not have left its cells
    assert shell("diff", original / "checkpoint-30", 10, 20).status == 0


def test_export_brings_foreign_objects_back(shell: Shell, original: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    assert shell("export", original, "--step", 20, "-o", out).status == 0
    state = torch.load(out, weights_only=True)
    assert state["callbacks"] == {(1, 2): 20}
    assert list(state["model"]) == list(training_state()["model"])
    assert shell("export", original / "checkpoint-10", "-o", out).status == 0
    assert torch.load(out, weights_only=True)["callbacks"] == {(1, 2): 10}


def test_export_runs_no_code_unless_told_to(shell: Shell, tmp_path: Path) -> None:
    run = PluginRun(PluginOptions(), framework="none")
    run.save(tmp_path / "1", 1, {"weight": torch.ones(32, 32), "gauge": Gauge(3)})
    run.close()
    out = tmp_path / "out.safetensors"
    refused = shell("export", tmp_path / "1", "-o", out)
    assert "--trust" in refused.error()
    assert "Gauge" in refused.error()
    assert not out.exists()


def test_an_exporter_may_ask_for_the_folder() -> None:
    def write(state: object, path: Path, source: Path | None = None) -> None:
        pass

    assert taken(write, source=Path("a")) == {"source": Path("a")}
    assert taken(write, source=None) == {}


def test_compact_is_for_stores(shell: Shell, output: Path) -> None:
    assert "share their files" in shell("compact", output).error()
    assert shell("compact", output / "checkpoint-30", "--max-chain", 0).status == 0
    assert shell("show", output / "checkpoint-30", "--json").json()["kind"] == "key"
    assert shell("verify", output).status == 0
