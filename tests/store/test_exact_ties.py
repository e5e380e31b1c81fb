"""exact= and names= where a tensor has several names, and patterns that cover nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.trail import Trail, read_link


class Tied(nn.Module):
    """A language model's ends: the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.body = nn.Linear(32, 32)
        self.lm_head = nn.Linear(32, 100, bias=False)
        self.lm_head.weight = self.embed.weight


PATTERNS = ["lm_head", "embed", "lm_head.weight", "*.lm_head.*", "model.lm_head", "model.embed.*"]


def is_exact(loaded: Any, model: nn.Module) -> bool:
    state = loaded["model"]
    assert state["lm_head.weight"] is state["embed.weight"]
    assert not torch.equal(state["body.weight"], model.state_dict()["body.weight"])  # so the test can fail
    return torch.equal(state["lm_head.weight"], model.state_dict()["embed.weight"])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_name_of_a_tied_tensor_keeps_it_exact(tmp_path: Path, pattern: str) -> None:
    model = Tied()
    state = {"model": model.state_dict()}
    with CheckpointStore(tmp_path / "store", exact=pattern) as store:
        store.save(1, state)
    assert is_exact(CheckpointStore(tmp_path / "store").load(), model)
    dq.save_file(state, tmp_path / "one.dq", exact=(pattern,))
    assert is_exact(dq.load_file(tmp_path / "one.dq"), model)
    trail, folder = Trail(exact=(pattern,)), tmp_path / "folder"
    folder.mkdir()
    saving = trail.begin(1, state)
    assert is_exact(read_link(folder, trail.commit(saving.seal(saving.draft()), folder)[1]), model)


def test_a_run_keeps_a_tied_head_exact(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    with (
        caplog.at_level(logging.WARNING, logger="dynaquant_core"),
        dq.Checkpointer(tmp_path, model, optimizer, exact=("lm_head",)) as checkpoints,
    ):
        checkpoints.save()
    assert is_exact(CheckpointStore(tmp_path).load(), model)
    assert not any("exact:" in line for line in caplog.messages)


def test_without_a_pattern_a_tied_tensor_is_quantised(tmp_path: Path) -> None:
    model = Tied()
    dq.save_file({"model": model.state_dict()}, tmp_path / "one.dq", exact=("head",))
    assert not is_exact(dq.load_file(tmp_path / "one.dq"), model)


def test_a_delta_follows_where_a_tied_tensor_becomes_exact(tmp_path: Path) -> None:
    """A store that was begun without the pattern, or before it counted, goes on."""
    model = Tied()
    state = {"model": model.state_dict()}
    with CheckpointStore(tmp_path) as store:
        store.save(1, state)
    with CheckpointStore(tmp_path, exact="lm_head") as store:
        store.resume()
        store.save(2, state)
    assert is_exact(CheckpointStore(tmp_path).load(2), model)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("model.lm_head", ["lm_head.weight"]),
        ("model.embed", ["embed.weight"]),
        ("*.lm_head.*", ["lm_head.weight"]),
        (["model.lm_head", "model.embed"], ["embed.weight", "lm_head.weight"]),
    ],
)
def test_a_tied_tensor_is_loaded_by_any_of_its_names(
    tmp_path: Path, names: str | list[str], expected: list[str]
) -> None:
    model = Tied()
    with CheckpointStore(tmp_path, method="exact") as store:
        store.save(1, {"model": model.state_dict()})
    loaded = CheckpointStore(tmp_path).load(names=names)["model"]
    assert list(loaded) == expected
    assert all(torch.equal(tensor, model.state_dict()["embed.weight"]) for tensor in loaded.values())


def said(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and record.getMessage().startswith("exact:")
    ]


def test_a_pattern_that_covers_nothing_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = {"model": Tied().state_dict()}
    with (
        caplog.at_level(logging.INFO, logger="dynaquant_core"),
        CheckpointStore(tmp_path, exact=("lm_haed", "body", "*.router.*")) as store,
    ):
        for step in range(3):
            store.save(step, state)
    first, second = said(caplog)
    assert "'lm_haed' covers no tensor" in first
    assert first.endswith("did you mean 'lm_head'?")
    assert "'*.router.*' covers no tensor" in second


def test_a_file_tells_of_a_pattern_that_covers_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="dynaquant_core"):
        dq.save_file({"model": Tied().state_dict()}, tmp_path / "one.dq", exact="lm_haed")
    assert len(said(caplog)) == 1


@pytest.mark.parametrize("state", [{}, {"step": 3, "note": "no tensor"}, {"w": torch.zeros(3)}])
def test_everything_is_no_pattern_to_speak_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, state: dict[str, Any]
) -> None:
    with caplog.at_level(logging.INFO, logger="dynaquant_core"):
        CheckpointStore(tmp_path, exact="*").save(1, state)
    assert not said(caplog)


def test_a_plugin_s_own_patterns_may_cover_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dynaquant_core"):
        trail = Trail(exact=("state.train_metrics",))
        for step in range(2):
            trail.begin(step, {"model": Tied().state_dict()})
    assert not said(caplog)
    assert len(said(caplog, logging.INFO)) == 1
