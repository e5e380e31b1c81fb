"""Recordings and their replays: real trainings, real kills, real stores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dynaquant_core.errors import ConfigError, ExperimentError, StorageError
from dynaquant_core.experiments import Progress, Results, events, run_experiment, shipped_configs, summary
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.record import record
from dynaquant_core.experiments.recorder import quantised_names
from dynaquant_core.experiments.recording import Recording, as_one_life
from dynaquant_core.experiments.tape import Tape, expected_bytes
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.store.store import CheckpointStore
from tests.experiments.conftest import enter_workplace, tiny_settings
from tests.experiments.states import assert_same

#: How long it took, and bytes that hold times.
TIMED = {"seconds", "stored_bytes", "parts"}
GRID = "grid={method: [lattice, dynaquant]}"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results, list[Progress]]:
    """A place where two methods were replayed, what came of it, and what was said."""
    said: list[Progress] = []
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("replay")
        path = enter_workplace(folder, patch) / "tiny.yaml"
        path.write_text(yaml.safe_dump(tiny_settings() | {"kind": "replay", "steps": 30}), encoding="utf-8")
        return folder, run_experiment(path, [GRID, "output=first"], said.append), said


@pytest.fixture
def replayed(
    first: tuple[Path, Results, list[Progress]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Results]:
    """The same, back in that place, whose recording is whole again afterwards."""
    enter_workplace(first[0], monkeypatch)
    kept = first[0] / "kept"
    if not kept.exists():
        shutil.copytree("runs", kept)
    yield first[1]
    shutil.rmtree("runs")
    shutil.copytree(kept, "runs")


def recording_here() -> Recording:
    (folder,) = Path("runs/.recordings").iterdir()
    return Recording(folder, (10, 20, 30))


def facts(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: entry[key] for key in entry.keys() - TIMED} for entry in run["checkpoints"]]


def test_a_replay_writes_what_the_training_would_have_written(replayed: Results) -> None:
    """Decisions, figures and every decoded value, of two methods that look at gradients."""
    trained = run_experiment("tiny.yaml", [GRID, "kind=train", "output=trained"])
    for index, (one, other) in enumerate(zip(replayed.data["runs"], trained.data["runs"], strict=True)):
        assert facts(one) == facts(other)
        stores = [CheckpointStore(r.path.parent / f"run-{index}" / "store") for r in (replayed, trained)]
        for step in (10, 20, 30):
            assert_same(*(store.load(step) for store in stores))
        assert one["final"]["baseline"] == other["final"]["value"]
        assert one.keys() >= other.keys()
        assert (one["final"].keys(), one["final"]["value"]) == (other["final"].keys(), None)
        assert (one["restores"], one["failures"], one["curves"]) == ([], [], [])
        for entry, same in zip(one["checkpoints"], other["checkpoints"], strict=True):
            assert entry["seconds"].keys() == same["seconds"].keys()
            assert entry["parts"].keys() == same["parts"].keys()


def test_one_recording_serves_all_and_is_said_to_cost_what_it_costs(
    first: tuple[Path, Results, list[Progress]], replayed: Results
) -> None:
    said = [progress.message for progress in first[2] if progress.run == "recording for run 1 of 2, seed 0"]
    assert sum("recording 3 exact states, about 1 MB" in message for message in said) == 1
    assert sum("finished" in message for message in said) == 1
    assert recording_here().folder.is_dir()
    rows = summary(replayed)
    assert [row["method"] for row in rows] == ["lattice", "dynaquant"]
    assert all(row["threshold met"] == "3 of 3" for row in rows)
    assert "stale" in (replayed.path.parent / "report.html").read_text(encoding="utf-8")


def test_a_recording_is_the_baseline_too(replayed: Results) -> None:
    said: list[Progress] = []
    killed = ["kind=train", "failures=1", "method=exact", "moments=exact", "output=killed"]
    (run,) = run_experiment("tiny.yaml", killed, said.append).data["runs"]
    assert {progress.run for progress in said} == {"run 1 of 1, seed 0"}
    assert run["final"]["same_bits"]


@pytest.mark.usefixtures("one_thread", "replayed")
def test_recorded_states_are_the_trainings_own() -> None:
    (run,) = expand(load_experiment("tiny.yaml"))
    trainer, recording = Trainer(run), recording_here()
    assert_same(recording.load(0)["state"]["model"], dict(trainer.model.state_dict()))
    averages: dict[str, torch.Tensor] = {}
    for step in range(1, 21):
        trainer.advance()
        for name, parameter in trainer.model.named_parameters():
            fresh = parameter.grad.detach().clone()
            averages[name] = fresh if step in {1, 11} else averages[name].lerp(fresh, 0.9)
    found = recording.load(20)
    assert_same(found["state"]["model"], dict(trainer.model.state_dict()))
    for name, average in averages.items():
        assert torch.equal(found["gradients"][name], average)
    sizes = [path.stat().st_size for path in (recording.folder / "states").iterdir()]
    assert 0.5 < max(sizes) / expected_bytes(trainer.model, run) < 1.5


@pytest.mark.usefixtures("one_thread", "replayed")
def test_a_recording_that_was_cut_short_goes_on_and_ends_in_the_same_bits() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step > 23:
            raise KeyboardInterrupt

    (run,) = expand(load_experiment("tiny.yaml", ["model.dropout=0.1"]))
    with pytest.raises(KeyboardInterrupt):
        record(run, "cut", "mine", interrupt)
    said: list[Progress] = []
    cut = record(run, "cut", "mine", said.append)
    assert "resumed from step 20" in [progress.message for progress in said]
    assert [event["restored"] for event in events.find(cut.diary, "start")] == [0, 20]
    whole = Trainer(run)
    losses = [whole.advance() for _ in range(30)]
    assert_same(cut.load(30)["state"]["model"], dict(whole.model.state_dict()))
    diary = as_one_life(cut.diary)
    assert diary[-1]["weights_digest"] == whole.digest()
    assert [event["loss"] for event in events.find(diary, "loss")] == losses
    assert [event["step"] for event in events.find(diary, "reference")] == [10, 20, 30]


def test_a_replay_that_was_cut_short_begins_anew(replayed: Results) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.run.startswith("run") and "delta" in progress.message:
            raise KeyboardInterrupt

    settings = ["output=out", "method=lattice"]
    with pytest.raises(KeyboardInterrupt):
        run_experiment("tiny.yaml", settings, interrupt)
    said: list[Progress] = []
    (run,) = run_experiment("tiny.yaml", settings, said.append).data["runs"]
    assert {progress.run for progress in said} == {"run 1 of 1, seed 0"}  # the recording was whole
    assert facts(run) == facts(replayed.data["runs"][0])
    said.clear()
    shutil.rmtree(recording_here().folder)  # gigabytes that are not needed any more
    assert run_experiment("tiny.yaml", settings, said.append).data["runs"] == [run]
    assert said == []


def test_as_restored_counts_movement_from_the_checkpoint_before(replayed: Results) -> None:
    settings = ["method=lattice", "as_restored=true", "output=restored"]
    (run,) = run_experiment("tiny.yaml", settings).data["runs"]
    assert run["as_restored"]
    assert facts(run)[0] == facts(replayed.data["runs"][0])[0]
    store, recording = CheckpointStore("restored/run-0/store"), recording_here()
    (settled,) = expand(load_experiment("tiny.yaml", settings))
    names = quantised_names(Trainer(settled).model, settled)
    before, after = (flat(store.load(step)["model"], names) for step in (10, 20))
    moved = flat(recording.load(20)["state"]["model"], names) - before
    along = float((after - before) @ moved / (moved @ moved))
    assert run["checkpoints"][1]["movement_lost"]["stale"] == pytest.approx(1 - along, abs=1e-6)


def flat(state: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    return torch.cat([state[name].double().flatten() for name in names])


@pytest.mark.usefixtures("replayed")
def test_a_recording_that_is_not_whole_is_never_believed() -> None:
    settings = ["method=exact", "moments=exact", "output=second"]
    folder = recording_here().folder
    state = folder / "states" / "step-20.dq"
    whole = state.read_bytes()
    state.write_bytes(whole[:-40])
    with pytest.raises(ExperimentError, match=r"states are not as they were written.*remove the folder"):
        run_experiment("tiny.yaml", settings)
    state.unlink()
    with pytest.raises(ExperimentError, match=r"step-20.dq: the recorded state is missing"):
        run_experiment("tiny.yaml", settings)
    assert not Path("second").exists()
    middle = len(whole) // 2
    state.write_bytes(whole[:middle] + bytes(40) + whole[middle + 40 :])
    with pytest.raises(
        ExperimentError, match=r"step-20.dq: the recorded state is damaged.*remove the folder"
    ):
        run_experiment("tiny.yaml", settings)
    state.write_bytes(whole)
    (folder / "finished.json").unlink()  # as after a death just before the mark: all is there, and is taken
    said: list[Progress] = []
    run_experiment("tiny.yaml", settings, said.append)
    assert {progress.run for progress in said} == {"run 1 of 1, seed 0"}


@pytest.mark.usefixtures("replayed")
def test_a_recording_of_another_run_is_one_clear_error() -> None:
    about = recording_here().folder / "recording.json"
    told = json.loads(about.read_text(encoding="utf-8"))
    about.write_text(json.dumps(told | {"steps": 70, "data_content": "other"}), encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"another run \(different: steps, data_content\)"):
        run_experiment("tiny.yaml", ["method=exact", "output=third"])
    about.write_text("{", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"recording.json: cannot be read as JSON"):
        run_experiment("tiny.yaml", ["method=exact", "output=third"])
    assert not Path("third").exists()


@pytest.mark.usefixtures("replayed")
def test_a_recording_that_was_made_anew_in_other_bits_is_not_put_beside_the_old_one() -> None:
    shutil.copytree("first", "mixed")
    diary = recording_here().folder / "events.jsonl"
    (final,) = events.find(events.read(diary), "final")
    diary.write_text(diary.read_text().replace(final["weights_digest"], "another"), encoding="utf-8")
    grown = ["grid={method: [lattice, dynaquant, exact]}", "output=mixed"]
    with pytest.raises(ExperimentError, match=r"recorded anew, and ends in other weights .* mixed/run-0 was"):
        run_experiment("tiny.yaml", grown)
    for name in ("run-0", "run-1"):
        shutil.rmtree(Path("mixed", name))
    assert len(run_experiment("tiny.yaml", grown).data["runs"]) == 3


@pytest.mark.usefixtures("replayed")
def test_damaged_files_of_a_replay_are_named_with_what_to_do() -> None:
    shutil.copytree("first", "bad")
    settings = [GRID, "output=bad"]
    Path("bad/run-0/job.json").write_bytes(b"\xff\xfe")
    with pytest.raises(
        ExperimentError, match=r"run-0/job\.json: no job of an experiment .* remove its folder"
    ):
        run_experiment("tiny.yaml", settings)
    shutil.copy("first/run-0/job.json", "bad/run-0/job.json")
    Path("bad/run-0/recorded.jsonl").unlink()
    with pytest.raises(ExperimentError, match=r"run-0/recorded\.jsonl does not say .* remove bad/run-0, and"):
        run_experiment("tiny.yaml", settings)
    shutil.rmtree("bad/run-1")  # is made anew all the same
    with pytest.raises(ExperimentError, match=r"run-0/recorded\.jsonl does not say"):
        run_experiment("tiny.yaml", settings)
    assert events.find(events.read(Path("bad/run-1/events.jsonl")), "final")
    diary = recording_here().folder / "events.jsonl"
    diary.write_bytes(diary.read_bytes()[:-40])
    with pytest.raises(
        ExperimentError, match=r"events\.jsonl does not say how .* remove the folder, and it is"
    ):
        run_experiment("tiny.yaml", ["method=exact", "output=new"])


@pytest.mark.usefixtures("replayed")
def test_a_disk_without_room_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = expand(load_experiment("tiny.yaml"))
    usage = shutil.disk_usage(".")
    with Tape(Trainer(run), run, Path("tape")) as tape:
        assert tape.require_space()["states"] == 3
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
        with pytest.raises(StorageError, match=r"3 exact states needs about .* 100,000 are free"):
            tape.require_space()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failures": 2}, "failures must be 0, not 2"),
        ({"failures": {"at": [15]}}, "failures must be 0"),
        ({"restores": "swap"}, "restores: swap says what becomes of a failure, and kind: replay has none"),
        ({"kind": "train", "as_restored": True}, "as_restored belongs to kind: replay"),
        ({"kind": "reply"}, "kind: expected 'train', "),
        ({"grid": {"failures": [0, 1]}}, "grid failures=1: a replay trains nothing"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tiny: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(validate(tiny | {"kind": "replay"} | changes, "tiny"))


def test_the_shipped_replays_are_what_they_say() -> None:
    assert {"replay/gpt_10", "replay/quick"} <= shipped_configs().keys()
    runs = expand(load_experiment("replay/gpt_10"))
    assert len(runs) == 12
    assert {(run.kind, run.steps, run.moments) for run in runs} == {("replay", 2200, "exact")}
    assert len(expand(load_experiment("replay/quick"))) == 8
