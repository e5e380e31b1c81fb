"""run and bench: the commands that work for minutes, on something that takes seconds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments.bench.saving import disk
from dynaquant_core.store import CheckpointStore
from tests.cli.words import Shell
from tests.full_disk import files_of_at_most

TINY = """
name: tiny
model: {name: char_gpt, layers: 1, width: 32, heads: 2}
data:
  {name: text, source: stdlib, max_bytes: 200_000, batch: 8, context: 32,
   search_tokens: 1024, heldout_tokens: 1024}
optimizer: {name: adamw, lr: 0.002}
steps: 8
checkpoint_every: 4
threshold: 0.01
failures: 0
evaluate: {metric: loss, batch: 16}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def test_run_prints_a_table_and_where_the_results_are(shell: Shell, config: Path) -> None:
    outcome = shell("run", config, "threshold=0.05", f"output={config.parent / 'out'}")
    assert outcome.status == 0, outcome.err
    written = json.loads((config.parent / "out" / "results.json").read_text())
    assert written["config"]["threshold"] == 0.05
    assert len(written["runs"][0]["checkpoints"]) == 2
    assert "results.json" in outcome.out
    assert "ratio" in outcome.out
    assert "tiny" in outcome.out
    again = shell("run", config, "threshold=0.05", f"output={config.parent / 'out'}", "--json")
    assert again.json() == written, "a finished run is told again, not trained again"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("thresholdd=0.1", "threshold"),
        ("steps=many", "steps"),
        ("data.source=nowhere.txt", "nowhere.txt"),
        ("x", "x"),
    ],
)
def test_a_bad_key_or_value_is_one_line(shell: Shell, config: Path, override: str, told: str) -> None:
    outcome = shell("run", config, override)
    assert outcome.status == 1
    assert told in outcome.error()
    assert not (config.parent / "runs").exists()


def test_bench_measures_small_sizes_too(shell: Shell) -> None:
    told = shell("bench", "--sizes", "300k", "--threads", "1", "--json")
    assert told.status == 0, told.err
    assert {row["parameters"] for row in told.json()["rows"]} >= {300_000}
    assert all(row["seconds"] > 0 for row in told.json()["rows"])
    rows = {row["stage"]: row for row in told.json()["rows"]}
    for stage in ("importance scores", "importance cuts", "rearrange + run lengths", "weights of codes"):
        assert rows[stage]["floor_ratio"] > 0
        assert rows[stage]["against"]
        assert rows[stage]["speedup"] > 0


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, in which no file may grow beyond a megabyte: writes fail alike."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with files_of_at_most(1 << 20):
        yield tmp_path


def test_bench_on_a_full_disk_names_the_temporary_folder(shell: Shell, full_disk: Path) -> None:
    """It was told as a bug of DynaQuant's."""
    outcome = shell("bench", "--sizes", "300k", "--threads", "1", "--device", "cpu")
    assert outcome.status == 1
    assert str(full_disk) in outcome.error()
    assert "TMPDIR" in outcome.error()
    assert list(full_disk.iterdir()) == []


def test_what_a_store_of_bench_has_no_room_for_is_told_alike(full_disk: Path) -> None:
    weights = {"fc.weight": torch.randn(1024, 1024)}
    with pytest.raises(StorageError, match="TMPDIR") as told, disk() as folder:
        CheckpointStore(folder, method="none").save(0, weights)
    assert str(full_disk) in str(told.value)


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_bench_on_a_device_that_is_not_there_is_one_line(shell: Shell, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device in this machine")
    outcome = shell("bench", "--device", device, "--sizes", "300k", "--threads", "1")
    assert outcome.status == 1
    assert device in outcome.error().lower()
