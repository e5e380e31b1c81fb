"""Transfers: compressed once, fine-tuned from what was decoded, beside the same from the exact weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from dynaquant_core.errors import ConfigError, CorruptFileError, ExperimentError
from dynaquant_core.experiments import Progress, Results, events, run_experiment, summary
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.figures import by_setting
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import Life
from dynaquant_core.experiments.models import build
from dynaquant_core.experiments.pretraining import pretraining, put_weights, read_weights
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.store.store import CheckpointStore
from tests.experiments.conftest import enter_workplace, tiny_settings
from tests.experiments.states import assert_same, cut_short

DATA = {"name": "bytes", "batch": 4, "context": 16, "search_tokens": 512, "heldout_tokens": 512}


def transfer_settings() -> dict[str, Any]:
    return tiny_settings() | {
        "kind": "transfer",
        "data": DATA | {"source": "rhyme.txt"},
        "steps": 20,
        "threshold": 0.05,
        "pretrained": {"steps": 30, "data": DATA | {"source": "verse.txt"}},
    }


def enter(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    place = enter_workplace(folder, patch)
    rhyme = "one two buckle my shoe three four knock at the door "
    (folder / "data" / "rhyme.txt").write_text(rhyme * 300, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results, list[Progress]]:
    """A place where two seeds were fine-tuned, what came of it, and what was said."""
    said: list[Progress] = []
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("transfer")
        path = enter(folder, patch) / "tiny.yaml"
        settings = transfer_settings() | {"seeds": [0, 1]}
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return folder, run_experiment(path, ["output=first"], said.append), said


@pytest.fixture
def done(first: tuple[Path, Results, list[Progress]], monkeypatch: pytest.MonkeyPatch) -> Results:
    enter(first[0], monkeypatch)
    return first[1]


def test_one_checkpoint_within_the_threshold_and_a_baseline_of_the_same_seed(done: Results) -> None:
    runs = done.data["runs"]
    assert [run["seed"] for run in runs] == [0, 1]
    for run in runs:
        (entry,) = run["checkpoints"]
        assert (entry["kind"], entry["step"], entry["met"]) == ("key", 0, True)
        assert entry["parts"].get("moment", {"raw_bytes": 0})["raw_bytes"] == 0
        assert 0 < run["final"]["value"] != run["final"]["baseline"]
        assert run["pretrained"] == {"source": None, "data": "verse.txt", "metric": "loss", "mode": "min"}
        assert (run["failures"], run["restores"]) == ([], [])
        assert [step for step, _ in run["curves"][0]][-1] == 20
    assert runs[0]["final"]["baseline"] != runs[1]["final"]["baseline"]
    assert runs[0]["checkpoints"][0]["quality"] == runs[1]["checkpoints"][0]["quality"]
    assert summary(done)[0]["threshold met"] == "1 of 1"
    assert "as decoded" in (done.path.parent / "report.html").read_text(encoding="utf-8")


def test_what_seeds_share_has_no_spread(done: Results) -> None:
    ((_, seeds, numbers),) = by_setting(done.data["runs"])
    assert seeds == [0, 1]
    for name in ("ratio_weights", "degradation_mean", "met"):
        figure = numbers[name]
        assert figure is not None, name
        assert figure.spread is None, name
    tuned = numbers["final_degradation"]
    assert tuned is not None
    assert tuned.spread is not None


@pytest.mark.usefixtures("one_thread", "done")
def test_the_fine_tuning_is_that_of_the_decoded_weights() -> None:
    (run, _) = load_runs()
    decoded = CheckpointStore("first/run-0/store").load()["model"]
    for weights, diary in (
        (decoded, events.read(Path("first/run-0/events.jsonl"))),
        (read_weights(recorded()), baseline_diary(0)),
    ):
        trainer = Trainer(run)
        trainer.model.load_state_dict(weights)
        losses = [trainer.advance() for _ in range(20)]
        assert [event["loss"] for event in events.find(diary, "loss")] == losses


def load_runs() -> list[Any]:
    from dynaquant_core.experiments.config import expand

    return expand(load_experiment("tiny.yaml"))


def recorded() -> Path:
    (folder,) = Path("runs/.recordings").iterdir()
    return folder / "states" / "step-30.dq"


def baseline_diary(seed: int) -> list[Any]:
    """Of a fine-tuning: the recorded pre-training is a baseline too, and longer."""
    for folder in sorted(Path("runs/.baselines").iterdir()):
        diary, job = events.read(folder / "events.jsonl"), folder / "job.json"
        if job.exists() and json.loads(job.read_text())["experiment"]["seed"] == seed:
            return diary
    raise AssertionError("no baseline")


def test_more_methods_repeat_neither_pre_training_nor_baseline(done: Results) -> None:
    said: list[Progress] = []
    results = run_experiment("tiny.yaml", ["grid={method: [qd]}", "output=more", "seeds=[1]"], said.append)
    assert {progress.run for progress in said} == {"run 1 of 1, seed 1"}
    (run,) = results.data["runs"]
    assert (run["method"], run["checkpoints"][0]["kind"]) == ("qd", "key")
    assert run["final"]["baseline"] == done.data["runs"][1]["final"]["baseline"]


def test_a_pre_training_that_was_made_anew_in_other_bits_is_another_start(done: Results) -> None:
    (diary,) = Path("runs/.recordings").glob("*/events.jsonl")
    (final,) = events.find(events.read(diary), "final")
    kept = diary.read_text(encoding="utf-8")
    said: list[Progress] = []
    try:
        diary.write_text(kept.replace(final["weights_digest"], "another"), encoding="utf-8")
        assert run_experiment("tiny.yaml", ["output=first"], said.append).data["runs"] == done.data["runs"]
        grown = ["seeds=[0, 1, 2]", "output=first"]
        with pytest.raises(ExperimentError, match=r"ends in other weights than those that first/run-0 began"):
            run_experiment("tiny.yaml", grown)
        assert said == [], "what is finished stays"
        run_experiment("tiny.yaml", ["seeds=[0]", "output=anew"], said.append)
        assert {progress.run for progress in said} == {"baseline of run 1 of 1, seed 0", "run 1 of 1, seed 0"}
    finally:
        diary.write_text(kept, encoding="utf-8")
    said.clear()
    run_experiment("tiny.yaml", ["seeds=[0]", "output=again"], said.append)
    assert {progress.run for progress in said} == {"run 1 of 1, seed 0"}


def test_an_update_of_torch_does_not_touch_what_is_finished(
    done: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pre-training would be recorded in another folder now; what it read is the same."""
    rhyme, said = Path("../data/rhyme.txt"), list[Progress]()
    before = rhyme.read_text(encoding="utf-8")
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(f"{torch.__version__}.later"))
    assert run_experiment("tiny.yaml", ["output=first"], said.append).data["runs"] == done.data["runs"]
    assert said == []
    try:
        rhyme.write_text(before + "five six", encoding="utf-8")
        with pytest.raises(ExperimentError, match=r"run-0 was run on other data than rhyme\.txt or verse"):
            run_experiment("tiny.yaml", ["output=first"])
    finally:
        rhyme.write_text(before, encoding="utf-8")


def test_a_run_that_was_cut_short_keeps_its_checkpoint(done: Results) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.run.startswith("run") and progress.step >= 5:
            raise KeyboardInterrupt

    overrides = ["output=cut", "seeds=[0]"]
    with pytest.raises(KeyboardInterrupt):
        run_experiment("tiny.yaml", overrides, interrupt)
    (file,) = Path("cut/run-0/store").glob("*.dq")
    written = file.stat().st_mtime_ns
    (run,) = run_experiment("tiny.yaml", overrides).data["runs"]
    assert file.stat().st_mtime_ns == written
    assert run["final"] == done.data["runs"][0]["final"]
    assert len(events.find(events.read(Path("cut/run-0/events.jsonl")), "checkpoint")) == 1


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_come_from_a_file_too(suffix: str) -> None:
    weights = read_weights(recorded())
    path = Path(f"weights{suffix}")
    if suffix == ".pt":
        torch.save({"state_dict": {f"module.{name}": value for name, value in weights.items()}}, path)
    else:
        save_file({name: value.clone() for name, value in weights.items()}, path)
    (run,) = load_runs()[:1]
    model = build(run, 256)
    put_weights(model, read_weights(path), str(path))
    assert_same(dict(model.state_dict()), weights)


@pytest.mark.usefixtures("done")
def test_a_whole_run_from_a_file_and_one_that_does_not_fit() -> None:
    torch.save(read_weights(recorded()), "weights.pt")
    settings = transfer_settings() | {
        "pretrained": {"source": "weights.pt", "data": DATA | {"source": "verse.txt"}}
    }
    Path("file.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    (run,) = run_experiment("file.yaml", ["output=file", "steps=10"]).data["runs"]
    assert run["pretrained"]["source"] == "weights.pt"
    assert run["checkpoints"][0]["met"]
    with pytest.raises(ExperimentError, match=r"weights.pt does not fit the model \(.*expected \[256, 64\]"):
        run_experiment("file.yaml", ["output=wide", "steps=10", "model.width=64"])


@pytest.mark.usefixtures("done")
def test_a_run_goes_on_with_weights_that_lie_elsewhere_now() -> None:
    torch.save(read_weights(recorded()), "here.pt")
    own = {"source": "here.pt", "data": DATA | {"source": "verse.txt"}}
    path = Path("moved.yaml")
    path.write_text(yaml.safe_dump(transfer_settings() | {"pretrained": own}), encoding="utf-8")
    (before,) = run_experiment(path, ["output=moved", "steps=10"]).data["runs"]
    cut_short(Path("moved/run-0/events.jsonl"))
    shutil.move("here.pt", "../data/here.pt")
    (run,) = run_experiment(path, ["output=moved", "steps=10"]).data["runs"]
    assert run["final"] == before["final"]
    assert Job.read(Path("moved/run-0")).start == Path("../data/here.pt").resolve()


@pytest.mark.usefixtures("done")
def test_what_the_source_lacks_begins_as_in_the_baseline() -> None:
    weights = read_weights(recorded())
    bare = {name: value.clone() for name, value in weights.items() if "head" not in name.split(".")}
    assert bare.keys() < weights.keys()
    save_file(bare, "bare.safetensors")
    own = {"source": "bare.safetensors", "data": DATA | {"source": "verse.txt"}}
    settings = transfer_settings() | {"pretrained": own, "method": "none", "seeds": [0, 1]}
    Path("bare.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    runs = run_experiment("bare.yaml", ["output=bare", "steps=10"]).data["runs"]
    assert [run["final"]["same_bits"] for run in runs] == [True, True]
    assert runs[0]["final"]["value"] != runs[1]["final"]["value"]


def test_heads_may_be_new_and_all_else_must_be_there() -> None:
    class Small(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, classes)

    old, new = Small(2), Small(5)
    before = new.head.weight.clone()
    bare = {name: value for name, value in old.state_dict().items() if not name.startswith("head")}
    put_weights(new, {name.removeprefix("encoder."): value for name, value in bare.items()}, "here")
    assert torch.equal(new.encoder.weight, old.encoder.weight)
    assert torch.equal(new.head.weight, before)
    untouched = Small(2)
    kept = {name: value.clone() for name, value in untouched.state_dict().items()}
    for bad, message in (
        ({"encoder.weight": bare["encoder.weight"]}, "encoder.bias is missing"),
        (dict(old.state_dict()) | {"encoder.bias": torch.ones(9)}, r"encoder.bias is \[9\], expected \[4\]"),
        ({"other": torch.ones(1)}, "encoder.weight is missing"),
    ):
        with pytest.raises(ExperimentError, match=message):
            put_weights(untouched, bad, "here")
        assert_same(dict(untouched.state_dict()), kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pretrained": None}, "kind: transfer needs pretrained"),
        ({"kind": "train"}, "pretrained belongs to kind: transfer"),
        ({"failures": 1}, "a transfer saves its one checkpoint before it trains, so failures must be 0"),
        ({"as_restored": True}, "as_restored belongs to kind: replay"),
        ({"restores": "swap"}, "restores: swap says what becomes of a failure, and kind: transfer has none"),
        ({"moments": "exact"}, "a model without an optimizer: moments would change nothing"),
        ({"max_chain": 2, "moments": "none"}, "moments and max_chain would change nothing; leave it out"),
        ({"pretrained": {}}, "give source .* or steps"),
        ({"pretrained": {"steps": 3, "source": "x"}}, "give source .* or steps"),
        ({"pretrained": {"source": "x", "seed": 3}}, "seed: weights from a file are not trained again"),
        ({"pretrained": {"steps": 3, "checkpoint_every": 4}}, r"checkpoint_every \(4\) is over steps \(3\)"),
        (
            {"pretrained": {"steps": 50, "checkpoint_every": 40}},
            r"checkpoint_every \(40\) does not divide steps \(50\): the last .* would be that of step 40",
        ),
        ({"pretrained": {"step": 3}}, "pretrained: unknown key 'step'; did you mean 'steps'"),
        (
            {"pretrained": {"steps": 3, "data": {"name": "cifar"}}},
            "reads data 'text' or 'bytes', not 'cifar'",
        ),
        (
            {"pretrained": {"steps": 3, "evaluate": {"metric": "correlation"}}},
            "data 'bytes' has the metric loss or accuracy, not 'correlation'",
        ),
    ],
)
def test_a_bad_transfer_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(transfer_settings() | change, "tiny")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.pt", "DYNAQUANT_DATA"),
        (
            "package:no-such-package-at-all/x.pt",
            "no package 'no-such-package-at-all' is installed; install it",
        ),
        ("package:torch/no/such.pt", "the package 'torch' has no 'no/such.pt'"),
        ("package:../x", "no package '..' is installed"),
    ],
)
def test_weights_that_are_not_there_stop_the_experiment_first(
    workplace: Path, source: str, message: str
) -> None:
    data = DATA | {"source": "verse.txt"}
    settings = transfer_settings() | {"pretrained": {"source": source}, "data": data}
    Path("bad.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with pytest.raises(ExperimentError, match=message):
        run_experiment("bad.yaml")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("a.safetensors", b"xx"), ("a.pt", b"PK\x03\x04no"), ("a.pt", b"")]
)
def test_a_file_without_weights_is_one_error(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=name):
        read_weights(path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ExperimentError, match="something else than tensors"):
        read_weights(tmp_path / "list.pt")


@pytest.mark.usefixtures("done")
def test_a_damaged_recording_of_the_pre_training_is_refused(tmp_path: Path) -> None:
    shutil.copytree("runs", tmp_path / "runs")
    path = recorded()
    path.write_bytes(path.read_bytes()[:-9])
    try:
        with pytest.raises(ExperimentError, match="states are not as they were written; remove the folder"):
            run_experiment("tiny.yaml", ["output=again"])
    finally:
        shutil.rmtree("runs")
        shutil.copytree(tmp_path / "runs", "runs")


def test_jobs_of_earlier_versions_start_nowhere(workplace: Path, tiny: dict[str, Any]) -> None:
    job = Job(Path("old"), validate(tiny, "tiny"), saves=True)
    job.write()
    data = json.loads(Path("old/job.json").read_text())
    del data["start"]
    Path("old/job.json").write_text(json.dumps(data))
    assert Job.read(Path("old")) == job
    assert Life(job, None).data.classes
    assert pretraining(validate(transfer_settings(), "t")).kind == "train"
