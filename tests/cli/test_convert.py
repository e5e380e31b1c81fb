"""export, compact, compress and decompress: out of native files and back into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer
from tests.cli.words import Shell, checkpoint_files, training_state


@pytest.mark.parametrize("command", ["compress", "import"])
def test_what_is_compressed_already_is_named_as_such(
    shell: Shell, looked_at: Path, tmp_path: Path, command: str
) -> None:
    packed = checkpoint_files(looked_at)[0]
    words = (packed, tmp_path / "out") if command == "import" else (packed, "-o", tmp_path / "out.dq")
    outcome = shell(command, *words)
    assert outcome.status == 1
    assert "found a .dq file" in outcome.error()
    assert "dynaquant decompress" in outcome.error()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["compress", "import"])
@pytest.mark.parametrize("method", ["zstd", "lattice"])
def test_a_point_of_another_method_than_the_named_one_is_refused(
    shell: Shell, native: Path, tmp_path: Path, command: str, method: str
) -> None:
    words = (native, tmp_path / "out") if command == "import" else (native, "-o", tmp_path / "out")
    outcome = shell(command, *words, "--method", method, "--bins", 8)
    assert outcome.status == 1
    assert f"belongs to the method 'dynaquant', and the method asked for is '{method}'" in outcome.error()
    assert not (tmp_path / "out").exists()
    for named in ((), ("--method", "dynaquant")):
        assert shell("compress", native, "--dry-run", "--bins", 8, *named).status == 0


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_export_writes_what_others_read(shell: Shell, looked_at: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    assert shell("export", looked_at, "--step", 20, "-o", out).status == 0
    state = CheckpointStore(looked_at).load(20)
    if ending == "pt":
        written = torch.load(out, weights_only=True)["model"]["0.weight"]
    else:
        written = load_file(out)["model.0.weight"]
    assert torch.equal(written, state["model"]["0.weight"])


def test_export_best_takes_the_best_measured_and_says_its_figures(shell: Shell, tmp_path: Path) -> None:
    model, losses = torch.nn.Linear(64, 64), iter([3.0, 2.0, 2.5])
    now = {"loss": 0.0}
    settings: dict[str, Any] = {"every": 1, "exact": ("*.bias",)}
    settings["evaluate"] = lambda: now["loss"] + 1e-9 * model.weight.abs().sum().item()
    with Checkpointer(tmp_path / "store", model, **settings) as checkpoints:
        for loss in losses:
            now["loss"] = loss
            checkpoints.step()
    told = shell("export", tmp_path / "store", "--best", "-o", tmp_path / "best.pt")
    assert told.status == 0
    assert told.out.strip().endswith("best.pt: step 2, the best: 2 as stored, 2 before (0.00% worse)")
    written, best = (
        torch.load(tmp_path / "best.pt", weights_only=True),
        CheckpointStore(tmp_path / "store").load(2),
    )
    assert torch.equal(written["model"]["weight"], best["model"]["weight"])


def test_export_best_where_nothing_was_measured_or_beside_a_step_is_refused(
    shell: Shell, looked_at: Path, tmp_path: Path
) -> None:
    outcome = shell("export", looked_at, "--best", "-o", tmp_path / "x.pt")
    assert outcome.status == 1
    assert "no checkpoint whose quality was measured" in outcome.error()
    assert shell("export", looked_at, "--best", "--step", 20, "-o", tmp_path / "x.pt").status == 2
    assert not (tmp_path / "x.pt").exists()


def test_export_names_the_targets_it_knows(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    outcome = shell("export", looked_at, "--to", "safetensor", "-o", tmp_path / "x")
    assert outcome.status == 1
    assert "safetensors" in outcome.error()


def test_export_takes_a_single_delta_file(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    assert shell("export", checkpoint_files(looked_at)[2], "-o", out).status == 0
    state = CheckpointStore(looked_at).load(30)
    assert torch.equal(torch.load(out, weights_only=True)["model"]["0.weight"], state["model"]["0.weight"])


def test_export_says_so_when_it_cannot_write(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    outcome = shell("export", looked_at, "-o", tmp_path / "no" / "such" / "folder" / "out.pt")
    assert outcome.status == 1
    assert outcome.error()


def test_compact_keeps_every_bit_and_frees_chains(shell: Shell, store: Path) -> None:
    before = {step: CheckpointStore(store).load(step)["model"]["0.weight"] for step in (10, 20, 30)}
    told = shell("compact", store, "--max-chain", 0, "--json")
    assert told.status == 0
    assert list(told.json()["before"]) == list(told.json()["after"]) == ["10", "20", "30"]
    opened = CheckpointStore(store)
    assert {opened.info(step).kind for step in opened.steps()} == {"key"}
    for step, weight in before.items():
        assert torch.equal(opened.load(step)["model"]["0.weight"], weight)


def test_compact_that_cannot_do_all_says_which_and_ends_in_1(shell: Shell, store: Path) -> None:
    (damaged,) = store.glob("step-000000020-*")
    damaged.write_bytes(damaged.read_bytes()[:-40])
    told = shell("compact", store, "--max-chain", 0)
    assert told.status == 1
    assert "30" in told.err
    assert shell("compact", store, "--max-chain", 0, "--json").json()["left"] == [30]


def test_compress_with_a_scale_of_the_lattice(shell: Shell, native: Path, tmp_path: Path) -> None:
    fine, coarse = (tmp_path / f"{scale}.dq" for scale in ("0.1", "1"))
    assert shell("compress", native, "-o", fine, "--scale", 0.1).status == 0
    assert shell("compress", native, "-o", coarse, "--scale", 1).status == 0
    assert fine.stat().st_size > coarse.stat().st_size
    assert "lattice" in shell("compress", native, "-o", fine, "--scale", 1, "--bins", 8).error()
    assert "scale" in shell("compress", native, "-o", fine, "--scale", "wide").error()


def test_compact_lists_files_that_tell_no_step_and_ends_in_1(shell: Shell, store: Path) -> None:
    """Of a store with no whole file it said that all was well."""
    files = checkpoint_files(store)
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    told = shell("compact", store)
    assert told.status == 1
    assert [file.name for file in files if file.name not in told.err] == []
    assert len(shell("compact", store, "--json").json()["damaged"]) == len(files)
    assert checkpoint_files(store) == files


def test_compact_applies_the_retention_it_is_given(shell: Shell, store: Path) -> None:
    newest = CheckpointStore(store).load(30)["model"]["0.weight"]
    assert shell("compact", store, "--keep-last", 1).status == 0
    assert CheckpointStore(store).steps() == [30]
    assert torch.equal(CheckpointStore(store).load()["model"]["0.weight"], newest)


def test_compress_and_decompress(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed, out = tmp_path / "model.dq", tmp_path / "again.pt"
    told = shell("compress", native, "-o", packed, "--bins", 32, "--json")
    assert told.status == 0
    assert told.json()["stored_bytes"] == packed.stat().st_size
    assert packed.stat().st_size < native.stat().st_size
    assert shell("decompress", packed, "-o", out).status == 0
    again, original = torch.load(out, weights_only=True), training_state()
    weight, found = original["model"]["0.weight"], again["model"]["0.weight"]
    assert (weight - found).norm() / weight.norm() < 0.25
    assert again["step"] == 7


def test_compress_exact_is_bit_for_bit(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed, out = tmp_path / "model.dq", tmp_path / "again.pt"
    words = ("--exact", "*", "--moments", "exact")
    assert shell("compress", native, "-o", packed, *words).status == 0
    assert shell("decompress", packed, "-o", out).status == 0
    again, original = torch.load(out, weights_only=True), training_state()
    assert torch.equal(again["model"]["0.weight"], original["model"]["0.weight"])
    moments = (state["optimizer"]["state"][0]["exp_avg"] for state in (again, original))
    assert torch.equal(*moments)


def test_dry_run_tells_the_sizes_and_writes_nothing(shell: Shell, native: Path, tmp_path: Path) -> None:
    told = shell("compress", native, "--dry-run", "--bins", 16, "--json").json()
    assert {"weight", "moment"} <= set(told["parts"])
    assert [path.name for path in tmp_path.iterdir()] == [native.name]
    shell("compress", native, "-o", tmp_path / "real.dq", "--bins", 16)
    assert told["stored_bytes"] == pytest.approx((tmp_path / "real.dq").stat().st_size, rel=0.02)
    table = shell("compress", native, "--dry-run").out
    assert "what would be saved" in table


@pytest.mark.parametrize(
    "words",
    [
        ("--bins", "1"),
        ("--bins", "many"),
        ("--prune", "1.5"),
        ("--moments", "7bit"),
        ("--method", "dynaquantt"),
    ],
)
def test_bad_settings_are_one_line(
    shell: Shell, native: Path, tmp_path: Path, words: tuple[str, str]
) -> None:
    outcome = shell("compress", native, "-o", tmp_path / "x.dq", *words)
    assert outcome.status == 1
    assert outcome.error()
    assert not (tmp_path / "x.dq").exists()


def test_method_options_reach_the_file(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed = tmp_path / "paper.dq"
    words = ("--method", "dynaquant", "--method", "coder=paper")
    assert shell("compress", native, "-o", packed, *words).status == 0
    assert shell("show", packed, "--json").json()["options"]["coder"] == "paper"


def test_a_packed_file_can_be_looked_at(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed = tmp_path / "model.dq"
    shell("compress", native, "-o", packed)
    for words in (("log", packed), ("show", packed, "--tensors"), ("verify", packed, "--deep")):
        assert shell(*words).status == 0
    assert shell("export", packed, "-o", tmp_path / "out.safetensors").status == 0


def test_nothing_is_written_over_what_it_is_made_of(shell: Shell, native: Path, store: Path) -> None:
    packed = native.with_suffix(".dq")
    assert shell("compress", native, "-o", packed).status == 0
    (checkpoint, *_) = checkpoint_files(store)
    kept = {path: path.read_bytes() for path in (native, packed, checkpoint)}
    link = native.with_name("link.pt")
    link.symlink_to(native)
    for words in (
        ("compress", native, "-o", native),
        ("compress", native, "-o", link),
        ("decompress", packed, "--to", "pt", "-o", packed),
        ("export", packed, "--to", "pt", "-o", packed),
        ("export", store, "--to", "pt", "-o", checkpoint),
        ("compress", native, "-o", checkpoint),
    ):
        outcome = shell(*words)
        assert outcome.status == 1
        assert "give another path" in outcome.error()
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_delta_under_another_name_says_that_its_base_is_not_there(
    shell: Shell, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    delta = checkpoint_files(store)[1].rename(tmp_path / "one" / "best.dq")
    assert "step 10" in shell("export", delta, "-o", tmp_path / "a.pt").error()
    assert not (tmp_path / "a.pt").exists()
    for words in (("verify", delta), ("verify", delta, "--deep")):
        outcome = shell(*words)
        assert outcome.status == 1
        assert "step 10" in outcome.out
