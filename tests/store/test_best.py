"""The best checkpoint: what counts as measured, which way a metric goes, what is said where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dynaquant_core as dq
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.store.best import best_of
from tests.store.kit import exact_store, filled, small_state


def info(step: int, stored: Any, *, mode: str | None = None, **fields: Any) -> CheckpointInfo:
    quality = None if stored is None else {"reference": 0.5, "search": stored}
    report = {} if mode is None else {"mode": mode}
    return CheckpointInfo(
        step, step, "key", None, "exact", None, 8, 8, {}, quality=quality, report=report, **fields
    )


def saved(path: Path, *reports: dict[str, Any]) -> CheckpointStore:
    """A store whose checkpoints, at steps 10, 20, ..., record these reports."""
    store = exact_store(path)
    for number, report in enumerate(reports, 1):
        saving = store.begin(10 * number, small_state(number))
        saving.seal(saving.draft(), report).write()
    return store


@pytest.mark.parametrize(("mode", "step"), [("min", 20), ("max", 10), (None, 20)])
def test_the_metric_as_stored_decides_and_its_mode(mode: str | None, step: int) -> None:
    infos = [info(10, 0.9, mode=mode), info(20, 0.3, mode=mode), info(30, 0.4, mode=mode)]
    assert best_of(infos, "here").step == step


def test_of_equals_the_newest_is_taken() -> None:
    assert best_of([info(10, 0.3), info(30, 0.3), info(20, 0.3)], "here").step == 30


def test_without_a_recorded_mode_the_sign_of_the_degradation_tells() -> None:
    up = [info(10, 0.45, degradation=0.1), info(20, 0.48, degradation=0.04), info(30, 0.5, degradation=0.0)]
    assert best_of(up, "here").step == 30
    down = [info(10, 0.55, degradation=0.1), info(20, 0.52, degradation=0.04), info(30, 0.6, degradation=0.2)]
    assert best_of(down, "here").step == 20
    better = [info(10, 0.55, degradation=-0.1), info(20, 0.9, degradation=-0.8)]
    assert best_of(better, "here").step == 20


@pytest.mark.parametrize("stored", [None, float("nan"), float("inf"), "0.1", True, [0.1]])
def test_only_a_finite_number_is_a_measurement(stored: Any) -> None:
    assert best_of([info(10, stored), info(20, 0.4)], "here").step == 20
    with pytest.raises(dq.CheckpointNotFoundError, match=r"was measured \(1 without\)"):
        best_of([info(10, stored)], "here")


def test_a_record_of_another_shape_is_no_measurement() -> None:
    odd = CheckpointInfo(10, 1, "key", None, "exact", None, 8, 8, {}, quality=[0.1], report={"mode": 7})
    assert best_of([odd, info(20, 0.4)], "here").step == 20


def test_a_store_names_its_best_and_exports_it(tmp_path: Path) -> None:
    quality = [{"quality": {"reference": 0.8, "search": value}, "mode": "max"} for value in (0.7, 0.9)]
    store = saved(tmp_path / "store", *quality, {})
    best = store.best()
    assert (best.step, best.quality["search"], store.newest().step) == (20, 0.9, 30)
    store.export(best.step, tmp_path / "best.pt")
    assert (tmp_path / "best.pt").stat().st_size > 0


def test_a_step_saved_again_counts_as_it_is_now(tmp_path: Path) -> None:
    store = saved(tmp_path, {"quality": {"search": 0.1}}, {"quality": {"search": 0.5}})
    saving = store.begin(10, small_state(9))
    saving.seal(saving.draft(), {"quality": {"search": 0.9}}).write()
    assert store.best().step == 20


def test_a_store_without_any_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(dq.EmptyStoreError, match="no best one"):
        CheckpointStore(tmp_path / "nothing").best()
    filled(tmp_path / "store")
    with pytest.raises(dq.CheckpointNotFoundError, match=r"store' holds no .* name a step"):
        CheckpointStore(tmp_path / "store").best()
