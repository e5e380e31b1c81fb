"""What a safetensors file says of itself comes back with its tensors; what a format cannot hold is told."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import dynaquant_core as dq
from dynaquant_core.training.rng import rng_state
from tests.cli.words import Outcome, Shell

LORA = {"format": "pt", "lora_adapter_metadata": '{"r": 16, "lora_alpha": 32}', "titel": "größer"}


def adapter(path: Path, metadata: dict[str, str] | None) -> Path:
    save_file({"lora_A.weight": torch.randn(16, 512), "lora_B.weight": torch.zeros(512, 16)}, path, metadata)
    return path


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def warnings_of(outcome: Outcome) -> list[str]:
    return [line for line in outcome.err.splitlines() if line.startswith("warning: ")]


def test_metadata_come_back_from_a_single_file(shell: Shell, tmp_path: Path) -> None:
    """PEFT and diffusers keep there what an adapter is made for."""
    native, packed, back = (tmp_path / name for name in ("lora.safetensors", "lora.dq", "back.safetensors"))
    adapter(native, LORA)
    assert shell("compress", native, "-o", packed).status == 0
    outcome = shell("decompress", packed, "-o", back)
    assert (outcome.status, warnings_of(outcome)) == (0, [])
    assert metadata_of(back) == LORA
    assert shell("export", packed, "-o", tmp_path / "too.safetensors").status == 0
    assert metadata_of(tmp_path / "too.safetensors") == LORA


def test_metadata_come_back_from_a_store_for_the_step_that_had_them(shell: Shell, tmp_path: Path) -> None:
    store, native = tmp_path / "store", adapter(tmp_path / "lora.safetensors", LORA)
    assert shell("import", native, store, "--step", 1).status == 0
    with dq.CheckpointStore(store) as run:
        run.save(2, run.load())
    assert shell("compact", store, "--max-chain", 0).status == 0
    for step, expected in ((1, LORA), (2, {"format": "pt"})):
        out = tmp_path / f"{step}.safetensors"
        assert shell("export", store, "--step", step, "-o", out).status == 0
        assert metadata_of(out) == expected
    dq.CheckpointStore(store).export(1, tmp_path / "api.safetensors")
    assert metadata_of(tmp_path / "api.safetensors") == LORA


def test_metadata_that_a_torch_file_cannot_hold_are_told(shell: Shell, tmp_path: Path) -> None:
    packed = tmp_path / "lora.dq"
    assert shell("compress", adapter(tmp_path / "a.safetensors", LORA), "-o", packed).status == 0
    for command in ("decompress", "export"):
        outcome = shell(command, packed, "-o", tmp_path / "back.pt")
        assert outcome.status == 0
        assert [line for line in warnings_of(outcome) if "lora_adapter_metadata, titel" in line]
    plain = adapter(tmp_path / "plain.safetensors", {"format": "pt"})
    assert shell("compress", plain, "-o", packed).status == 0
    assert not warnings_of(shell("decompress", packed, "-o", tmp_path / "back.pt"))


def test_metadata_longer_than_a_checkpoint_takes_are_told(shell: Shell, tmp_path: Path) -> None:
    native = adapter(tmp_path / "a.safetensors", {"tags": "a,b" * 1_000_000})
    for words in (("compress", native, "-o", tmp_path / "a.dq"), ("import", native, tmp_path / "store")):
        outcome = shell(*words)
        assert outcome.status == 0
        assert "3,000,004 characters" in "".join(warnings_of(outcome))
    assert dq.load_file(tmp_path / "a.dq")["lora_B.weight"].shape == (512, 16)


def test_numbers_and_text_that_safetensors_leaves_out_are_told(shell: Shell, tmp_path: Path) -> None:
    state = {
        "model": {"w": torch.randn(64, 64)},
        "epoch": 3,
        "lr": 1e-3,
        "names": ["a", "b"],
        "losses": [float(number) for number in range(5000)],
        "log": [{"step": 1}, {"step": 2}],
        "nothing": None,
    }
    torch.save(state, tmp_path / "c.pt")
    assert shell("compress", tmp_path / "c.pt", "-o", tmp_path / "c.dq").status == 0
    assert shell("import", tmp_path / "c.pt", tmp_path / "store").status == 0
    packed, store = tmp_path / "c.dq", tmp_path / "store"
    for words in (("decompress", packed), ("export", packed), ("export", store)):
        outcome = shell(*words, "-o", tmp_path / "c.safetensors")
        assert outcome.status == 0
        (line,) = warnings_of(outcome)
        assert "epoch, lr, names, losses, log.0.step and 1 more" in line
    assert not warnings_of(shell("decompress", tmp_path / "c.dq", "-o", tmp_path / "back.pt"))


@pytest.mark.parametrize("command", ["decompress", "export"])
def test_arrays_that_a_torch_file_holds_as_tensors_are_told(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    """And what else comes back as something else; random streams of a `Checkpointer` are read from either."""
    state = {
        "w": torch.randn(64, 64),
        "mean": np.arange(5.0),
        "rng": rng_state(),
        "best": np.float64(1),
    }
    state["log"] = [{"losses": np.ones(3, np.float32), "took": timedelta(seconds=3)}, {"where": Path("a")}]
    dq.save_file(state, tmp_path / "c.dq")
    outcome = shell(command, tmp_path / "c.dq", "-o", tmp_path / "c.pt")
    assert outcome.status == 0
    (line,) = warnings_of(outcome)
    assert line.endswith(": mean, log.0.losses, log.0.took, log.1.where")
    found = torch.load(tmp_path / "c.pt")
    assert torch.equal(found["mean"], torch.arange(5.0, dtype=torch.float64))
    assert (found["log"][0]["took"], found["log"][1]["where"], found["best"]) == (3.0, "a", 1.0)


@pytest.mark.parametrize("command", ["decompress", "export"])
def test_nothing_is_told_where_nothing_is_left_out(shell: Shell, tmp_path: Path, command: str) -> None:
    torch.save({"w": torch.randn(64, 64), "tied": {"b": torch.ones(3)}}, tmp_path / "c.pt")
    assert shell("compress", tmp_path / "c.pt", "-o", tmp_path / "c.dq").status == 0
    outcome = shell(command, tmp_path / "c.dq", "-o", tmp_path / "c.safetensors")
    assert (outcome.status, warnings_of(outcome)) == (0, [])
