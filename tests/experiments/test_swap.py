"""Restores inside one process: the same run as a killed one, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dynaquant_core.experiments import Progress, events, run_experiment
from dynaquant_core.experiments.config import Experiment, validate
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import Life, swaps_left
from dynaquant_core.experiments.process import live_on
from dynaquant_core.experiments.recorder import quantised_names
from dynaquant_core.experiments.supervisor import complete
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.checkpointer import Checkpointer
from tests.experiments.states import assert_same

CNN = {"name": "resnet", "widths": [4, 8]}
VIT = {"name": "vit", "layers": 1, "width": 32, "heads": 2, "patch": 8}


#: Models this small only wait for a second thread; the processes have one as well.
pytestmark = pytest.mark.usefixtures("one_thread")


def images(place: Path) -> dict[str, Any]:
    """Settings of a few images, which are made here: faint noise about a colour that is their label."""
    rng = np.random.default_rng(0)
    labels = np.arange(96, dtype=np.uint8) % 4
    pixels = rng.integers(0, 60, (96, 32, 32, 3)) + 40 * labels[:, None, None, None]
    parts = {"train": slice(0, 64), "test": slice(64, 96)}
    arrays = {f"x_{name}": pixels[part].astype(np.uint8) for name, part in parts.items()}
    np.savez(place / "images.npz", **arrays, **{f"y_{name}": labels[part] for name, part in parts.items()})
    data = {"name": "cifar", "source": str(place / "images.npz"), "batch": 8}
    return {
        "data": data | {"search_images": 16, "heldout_images": 16},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "evaluate": {"metric": "loss", "batch": 8},
    }


def lived(folder: Path, experiment: Experiment) -> list[events.Event]:
    """The diary of a run, brought to its end."""
    job = Job(folder, experiment, saves=True)
    job.write()
    planned = failure_steps(experiment.failures, experiment.steps, experiment.checkpoint_every)
    return complete(job, planned if experiment.restores == "kill" else (), "run", lambda progress: None)


def facts(diary: list[events.Event]) -> list[dict[str, Any]]:
    """What a diary says of the training; times, and bytes that hold times, left out."""
    timed = {"seconds", "stored_bytes", "parts"}
    kept = [event for event in diary if event["event"] not in {"killed", "swapped"}]
    told = [{key: value for key, value in event.items() if key not in timed} for event in kept]
    return [event for event in told if event["event"] != "loss" or event["step"] % 10 == 0]


@pytest.mark.parametrize(
    ("model", "failures"), [({"layers": 1, "width": 32, "heads": 2, "dropout": 0.1}, 2), (CNN, 1)]
)
def test_a_swap_is_a_kill_and_a_resume_bit_for_bit(
    workplace: Path, tiny: dict[str, Any], model: dict[str, Any], failures: int
) -> None:
    settings = {"model": {"name": "char_gpt", **model}} | (images(workplace) if "widths" in model else {})
    diaries = {}
    for way in ("kill", "swap"):
        experiment = validate(tiny | settings | {"steps": 30, "failures": failures, "restores": way}, way)
        diaries[way] = lived(workplace / way, experiment)
    kinds = {way: [event["event"] for event in diary] for way, diary in diaries.items()}
    assert kinds["kill"].count("killed") == kinds["swap"].count("swapped") == failures
    assert "swapped" not in kinds["kill"]
    assert "killed" not in kinds["swap"]
    assert facts(diaries["kill"]) == facts(diaries["swap"])
    assert diaries["kill"][-1]["weights_digest"] == diaries["swap"][-1]["weights_digest"]
    for step in (10, 20, 30):
        one, other = (CheckpointStore(workplace / way / "store").load(step) for way in ("kill", "swap"))
        assert_same(one, other)


@pytest.mark.parametrize("way", ["kill", "swap"])
def test_a_failure_on_a_checkpoint_comes_where_the_command_died_just_before_it(
    workplace: Path, tiny: dict[str, Any], way: str
) -> None:
    """Its process goes on from that step; under kills no later failure came either."""
    settings = {"steps": 30, "failures": {"at": [10, 25]}, "restores": way}
    folder = workplace / "run"
    lived(folder, validate(tiny | settings, way))
    path = folder / "events.jsonl"

    def cut(step: int) -> None:
        told = [(line, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines(True)]
        saved = [event["event"] == "checkpoint" and event["step"] == step for _, event in told].index(True)
        path.write_text("".join(line for line, _ in told[: saved + 1]), encoding="utf-8")

    def failed() -> list[int]:
        diary = lived(folder, validate(tiny | settings, way))
        return [event["step"] for event in diary if event["event"] in {"killed", "swapped"}]

    cut(10)
    assert failed() == [10, 25]
    cut(20)
    kept = [line for line in path.read_text(encoding="utf-8").splitlines(True) if '"step": 10' not in line]
    path.write_text("".join(kept), encoding="utf-8")  # as a version left it that went on without the first
    assert failed() == [25]


def test_movement_is_counted_from_the_swap_on(workplace: Path, tiny: dict[str, Any]) -> None:
    """By hand: the movement that a checkpoint lost, from what was restored before it."""
    experiment = validate(tiny | {"steps": 20, "failures": {"at": [15]}, "restores": "swap"}, "tiny")
    job = Job(workplace / "run", experiment, saves=True)
    job.write()
    live_on(job, None)
    diary, store = events.read(job.diary), CheckpointStore(job.store)
    trainer = Trainer(experiment)
    names = quantised_names(trainer.model, experiment)
    matrices = [name for name in names if trainer.model.get_parameter(name).dim() >= 2]
    first, second = (store.load(step)["model"] for step in (10, 20))
    entry = next(event for event in events.find(diary, "checkpoint") if event["step"] == 20)
    with Checkpointer(job.store, trainer.model, trainer.optimizer, scheduler=trainer.scheduler) as again:
        trainer.step = again.restore(10)
        for _ in range(10):
            trainer.advance()

    def stale(names: list[str]) -> float:
        start, decoded, live = (flat(state, names) for state in (first, second, trainer.model.state_dict()))
        moved = live - start
        return 1 - float((decoded - start) @ moved / (moved @ moved))

    assert entry["movement_lost"]["stale"] == pytest.approx(stale(names), abs=1e-6)
    assert store.info(20).stale == pytest.approx(stale(matrices), abs=1e-4)  # what a Checkpointer samples
    assert len(matrices) < len(names)


def flat(state: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    return torch.cat([state[name].double().flatten() for name in names])


def test_an_interrupted_grid_keeps_what_is_done_and_repeats_no_swap(tiny_file: Path) -> None:
    settings = ["restores=swap", "steps=30", "grid={failures: [0, 2]}", "output=out"]

    def interrupt(progress: Progress) -> None:
        if progress.message == "state thrown away":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny_file, settings, interrupt)
    partial = yaml.safe_load(Path("out/results.json").read_text(encoding="utf-8"))
    assert [run["failures"] for run in partial["runs"]] == [[]]
    said: list[Progress] = []
    first, second = run_experiment(tiny_file, settings, said.append).data["runs"]
    assert {progress.run for progress in said} == {"run 2 of 2, seed 0"}
    assert first == partial["runs"][0]
    assert second["failures"] == [15, 25]
    assert second["final"]["relative_degradation"] != 0.0


def test_a_baseline_swaps_nothing(workplace: Path, tiny: dict[str, Any]) -> None:
    experiment = validate(tiny | {"failures": 2, "restores": "swap"}, "tiny")
    assert swaps_left(Job(workplace / "a", experiment, saves=False)) == set()
    job = Job(workplace / "b", experiment, saves=True)
    assert swaps_left(job) == {15, 25}
    job.folder.mkdir()
    events.append(job.diary, "swapped", step=15)
    assert swaps_left(job) == {25}
    assert swaps_left(Job(workplace / "b", validate(tiny | {"failures": 2}, "tiny"), saves=True)) == set()


def test_a_life_hands_on_its_data_and_nothing_else(workplace: Path, tiny: dict[str, Any]) -> None:
    job = Job(workplace / "a", validate(tiny, "tiny"), saves=False)
    first = Life(job, None)
    second = Life(job, None, first.data)
    assert second.data is first.data
    tensors = [{p.data_ptr() for p in life._trainer.model.parameters()} for life in (first, second)]
    assert not tensors[0] & tensors[1]


def test_a_vit_learns_and_comes_back_bit_for_bit_with_exact(workplace: Path, tiny: dict[str, Any]) -> None:
    settings = images(workplace) | {"optimizer": {"name": "adamw", "lr": 0.003}}
    experiment = validate(tiny | settings | {"model": {**VIT, "dropout": 0.1}}, "vit")
    whole = Trainer(experiment)
    losses = [whole.advance() for _ in range(40)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    exact = {"every": 20, "method": "exact", "moments": "exact"}
    first, store = Trainer(experiment), workplace / "store"
    with Checkpointer(
        store, first.model, first.optimizer, scheduler=first.scheduler, **exact
    ) as checkpointer:
        for _ in range(20):
            first.advance()
            checkpointer.step()
    second = Trainer(experiment)
    with Checkpointer(store, second.model, second.optimizer, scheduler=second.scheduler) as checkpointer:
        second.step = checkpointer.restore()
        assert second.step == 20
        assert second.digest() == first.digest()
        assert [second.advance() for _ in range(20)] == losses[20:]
    assert second.digest() == whole.digest()


def test_a_vit_sees_where_a_patch_is(workplace: Path) -> None:
    from dynaquant_core.experiments.models.vit import ViT

    torch.manual_seed(0)
    model = ViT(classes=10, layers=1, width=32, heads=2, patch=8).eval()
    picture = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert not torch.allclose(model(picture), model(picture.roll(8, dims=3)), atol=1e-5)
