"""benchmarks/peers on a real recording: what needs no package of a peer, and the peers where installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import run_experiment
from dynaquant_core.experiments.measures import MovementWatch
from tests.experiments.conftest import enter_workplace, tiny_settings
from tests.methods import method_kit as kit

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
PARTS = ("coder", "compare", "exact", "judge", "ours", "show", "sources", "states", "table")
OF_PACKAGES = {
    "zipnn": "zipnn", "zipnn-delta": "zipnn", "torchao-8bit": "torchao", "torchao-4bit": "torchao",
    "bitsandbytes": "bitsandbytes", "nncodec": "nncodec", "nncodec-er": "nncodec",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The benchmark's modules, which are a folder that is run and no package."""
    before = set(sys.modules)
    sys.path.insert(0, str(PEERS))
    parts = {name: importlib.import_module(name) for name in PARTS}
    parts["search"] = importlib.import_module("peer_nncodec.search")
    spec = importlib.util.spec_from_file_location("peers_main", PEERS / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    yield SimpleNamespace(**parts, main=main.main)
    sys.path.remove(str(PEERS))
    for name in set(sys.modules) - before:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place where a replay of a tiny GPT has run: tiny.yaml, runs/ours and the recording."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("peers")
        settings = {"kind": "replay", "steps": 30, "threshold": 0.05, "output": "runs/ours"}
        path = enter_workplace(folder, patch) / "tiny.yaml"
        path.write_text(yaml.safe_dump(tiny_settings() | settings), encoding="utf-8")
        run_experiment(path)
    return folder


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Back in that place; the recording's folder."""
    enter_workplace(place, monkeypatch)
    (folder,) = Path("runs/.recordings").iterdir()
    return folder


@pytest.fixture
def comparison(bench: SimpleNamespace, there: Path) -> Any:
    (source,) = bench.sources.recorded(str(there), [], lambda progress: None)
    return bench.compare.Comparison(source.experiment, source.recording)


class Half:
    """A toy peer: float16 on disk."""

    def __init__(self, bench: SimpleNamespace, lose: str | None = None) -> None:
        self._bench, self._lose = bench, lose

    def write(self, tensors: Any, folder: Path, meets: Any) -> Any:
        kept = {name: tensor.half() for name, tensor in tensors.items() if name != self._lose}
        torch.save(kept, folder / "half.pt")
        return self._bench.coder.Note(0.0, "half", int(meets(self.read(folder))))

    def read(self, folder: Path) -> dict[str, torch.Tensor]:
        return {name: tensor.float() for name, tensor in torch.load(folder / "half.pt").items()}


def complaint(bench: SimpleNamespace, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line with which the benchmark refuses."""
    assert bench.main(words) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@given(finest=st.integers(-80, 0), span=st.integers(1, 80), limit=st.integers(-100, 100), guess=st.integers())
def test_the_search_finds_the_coarsest_that_meets(
    bench: SimpleNamespace, finest: int, span: int, limit: int, guess: int
) -> None:
    top, seen = finest + span, []
    number, result, count = bench.search.coarsest(
        lambda n: seen.append(n) or n * 10, lambda r: r <= limit * 10, finest, top, guess
    )
    meeting = [n for n in range(finest, top + 1) if n <= limit]
    assert (number, result) == (max(meeting, default=finest), 10 * max(meeting, default=finest))
    assert count == len(seen) == len(set(seen)) <= 15
    assert finest <= min(seen) <= max(seen) == top
    if guess in {limit, limit + 1} and finest < guess < top:
        assert count <= 4


def test_an_exact_peer_loses_nothing_and_its_bytes_are_on_the_disk(
    bench: SimpleNamespace, comparison: Any, tmp_path: Path
) -> None:
    peer = bench.table.PEERS["torch.save"]
    entries = list(comparison.checkpoints(peer, tmp_path, threshold=0.05, er=0.2))
    assert [entry["step"] for entry in entries] == [10, 20, 30]
    for entry in entries:
        assert entry["bits"] == {"weight": True, "moment": True}
        assert entry["degradation"] == {"search": 0.0, "heldout": 0.0, "heldout_se": 0.0}
        lost = entry["movement_lost"]
        assert (lost["stale"], lost["noise"]) == pytest.approx((0, 0), abs=1e-12)
        parameters = comparison.judge.parameters
        assert entry["parts"]["weight"]["raw_bytes"] == 4 * parameters
        assert entry["parts"]["moment"]["raw_bytes"] == 8 * parameters
        for role, part in entry["parts"].items():
            (file,) = (tmp_path / f"step-{entry['step']}" / role).iterdir()
            assert part["stored_bytes"] == file.stat().st_size > part["raw_bytes"]
    figures = bench.show.summary(entries)
    assert 0.5 < figures["ratio_state"] < 1
    assert (figures["met"], figures["er_mean"]) == (3, 0.0)
    spoilt = {**entries[0], "degradation": {"search": None, "heldout": None, "heldout_se": None}}
    figures = bench.show.summary([spoilt, *entries[1:]])
    names = ("degradation_mean", "degradation_max", "heldout_degradation_mean")
    assert [figures[name] for name in names] == [None] * 3, "the others do not speak for it"


def test_a_lossy_peer_is_measured_as_its_reader_gets_it(
    bench: SimpleNamespace, comparison: Any, tmp_path: Path
) -> None:
    peer = bench.table.Peer("half", lambda: Half(bench), None)
    entries = list(comparison.checkpoints(peer, tmp_path, threshold=0.05, er=0.2))
    start, previous = comparison.recording.load(0)["state"]["model"], None
    for entry in entries:
        true = comparison.recording.load(entry["step"])["state"]["model"]
        decoded = {name: tensor.half().float() for name, tensor in true.items()}
        watch = MovementWatch({name: start[name] for name in comparison.judge.names}, restored=False)
        if previous is not None:
            watch.advance(previous)
        assert entry["movement_lost"] == watch.lost(true, decoded)
        assert entry["unchanged"] == watch.unchanged(decoded)
        assert entry["bits"] == {"weight": False, "moment": False}
        assert entry["met"]
        assert 0 < abs(entry["degradation"]["search"]) < 0.01
        assert 0 < entry["moments_error"]["exp_avg"] < 0.05  # 8 bit, the experiment's policy
        previous = decoded


def test_what_does_not_come_back_is_an_error(bench: SimpleNamespace, comparison: Any, tmp_path: Path) -> None:
    peer = bench.table.Peer("loses", lambda: Half(bench, lose="wpe.weight"), None)
    with pytest.raises(ExperimentError, match=r"wpe\.weight is not among the weights"):
        list(comparison.checkpoints(peer, tmp_path, threshold=0.05, er=0.2))


def test_the_movement_guard_asks_for_a_share_of_what_moved(bench: SimpleNamespace) -> None:
    watch = MovementWatch({"w": torch.zeros(2)}, restored=False)
    true = {"w": torch.tensor([2.0, 0.0])}
    asked = []
    first = bench.judge.within_movement(watch, true, 0.2, lambda weights: asked.append(weights) or False)
    assert not first({"w": torch.zeros(2)})
    assert len(asked) == 1
    watch.advance({"w": torch.zeros(2)})  # moved by 4, so that an error of 0.8 may remain
    later = bench.judge.within_movement(watch, true, 0.2, lambda weights: pytest.fail("asked again"))
    assert later({"w": torch.tensor([1.2, 0.0])})
    assert not later({"w": torch.tensor([1.0, 0.0])})


def test_counters_of_batch_norms_are_weights_and_tied_ones_count_once(bench: SimpleNamespace) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[2].weight = model[1].weight
    state = bench.states.state_of({"model": model.state_dict()})
    assert sorted(state.weights) == sorted(
        [*(f"0.{name}" for name in model[0].state_dict()), "1.weight", "1.bias", "2.bias"]
    )
    assert state.parts().keys() == {"weight"}
    changed = state.weights | {"1.bias": -state.weights["1.bias"].clone().zero_()}
    zeroed = state.weights | {"1.bias": torch.zeros(4)}
    assert bench.states.same_bits(state.weights, dict(state.weights))
    assert not bench.states.same_bits(changed, zeroed)  # -0 is not 0


def test_ours_stands_beside_under_the_recordings_name(
    bench: SimpleNamespace, there: Path, tmp_path: Path
) -> None:
    script = [sys.executable, str(PEERS), "tiny.yaml", "--peers", "torch.save", "--ours"]
    done = subprocess.run(
        [*script, "--json", str(tmp_path / "out.json"), "--files", str(tmp_path / "files")],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "char_gpt" in done.stdout
    assert "torch.save" in done.stdout
    ours, peer = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    named = ("model", "data", "seed", "interval_steps", "steps", "parameters", "device")
    assert [ours[key] for key in named] == [peer[key] for key in named]
    assert (ours["peer"], ours["threshold"], peer["threshold"]) == ("lattice", 0.05, None)
    run = json.loads(Path("runs/ours/results.json").read_text(encoding="utf-8"))["runs"][0]
    assert ours["summary"]["ratio_weights"] == pytest.approx(run["totals"]["weights_ratio"])
    assert ours["summary"]["read_seconds"] > 0
    for mine, theirs in zip(ours["checkpoints"], peer["checkpoints"], strict=True):
        for role in ("weight", "moment"):
            assert mine["parts"][role]["raw_bytes"] == theirs["parts"][role]["raw_bytes"]
    assert sum(1 for path in (tmp_path / "files").rglob("plain.pt")) == 6


def test_bad_words_are_refused_in_one_line(
    bench: SimpleNamespace, there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        return complaint(bench, capsys, *words)

    assert "did you mean 'nncodec'?" in said(str(there), "--peers", "nncodek")
    assert "between 0 and 1" in said(str(there), "--threshold", "0.01,2")
    assert "between 0 and 1" in said(str(there), "--threshold", "low")
    assert "above 0" in said(str(there), "--er", "0")
    assert "needs the config" in said(str(there), "--ours", "--peers", "torch.save")
    assert "cannot change what was recorded" in said(str(there), "steps=5")
    assert "no such file" in said("tini.yaml")
    assert "no job of an experiment" in said(str(tmp_path))
    assert "is there already" in said(str(there), "--files", str(tmp_path))
    assert "cannot be read" in said(str(there), "--results", "tiny.yaml")
    results = json.loads(Path("runs/ours/results.json").read_text(encoding="utf-8"))
    results["runs"][0]["seed"] = 3
    (tmp_path / "other.json").write_text(json.dumps(results), encoding="utf-8")
    assert "no replay of this recording" in said(str(there), "--results", str(tmp_path / "other.json"))


def test_a_recording_that_is_not_finished_is_refused(
    bench: SimpleNamespace, there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / there.name
    shutil.copytree(there, half)
    (half / "finished.json").unlink()
    assert "not finished" in complaint(bench, capsys, str(half))


def test_a_package_that_is_missing_is_one_line_with_what_to_run(
    bench: SimpleNamespace, there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.table, "find_spec", lambda package: None)
    line = complaint(bench, capsys, str(there), "--peers", "torch.save,nncodec")
    assert "nncodec needs nncodec" in line
    assert f"pip install -r {PEERS / 'requirements.txt'}" in line
    assert [peer.name for peer in bench.table.chosen(None)] == ["torch.save"]


@pytest.mark.parametrize("name", OF_PACKAGES)
def test_a_real_peer_writes_and_reads(bench: SimpleNamespace, there: Path, tmp_path: Path, name: str) -> None:
    """In a process of its own: what these packages warn of on import is not ours."""
    if importlib.util.find_spec(OF_PACKAGES[name]) is None:
        pytest.skip(f"{OF_PACKAGES[name]} is not installed (benchmarks/peers/requirements.txt)")
    done = subprocess.run(
        [sys.executable, str(PEERS), str(there), "--peers", name, "--json", str(tmp_path / "out.json")],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert "error" not in row
    assert row["version"]
    figures, entries = row["summary"], row["checkpoints"]
    if name.startswith("zipnn"):
        assert figures["exact"] == {"weight": True, "moment": True}
        assert figures["ratio_state"] > 1
    elif name.startswith("nncodec"):
        assert figures["ratio_weights"] > 5
        assert entries[0]["met"]
        assert all(entry["evaluations"] > 1 for entry in entries)
        if name == "nncodec":
            assert figures["met"] == 3
        else:
            assert all(entry["movement_lost"]["er"] <= 0.2 for entry in entries[1:])
    else:
        assert figures["exact"] == {"weight": True, "moment": False}
        assert figures["degradation_max"] == 0.0
        assert all(0 < entry["moments_error"]["exp_avg"] < 0.2 for entry in entries)


def environment() -> dict[str, str]:
    """Of a child: one thread, the tree of this file."""
    paths = os.pathsep.join(filter(None, (str(PEERS.parents[1]), os.environ.get("PYTHONPATH"))))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def test_nncodec_as_a_method_passes_the_kit(bench: SimpleNamespace) -> None:
    pytest.importorskip("nncodec", reason="pip install -r benchmarks/peers/requirements.txt")
    nncodec = importlib.import_module("peer_nncodec.method")
    method = nncodec.NNCodecMethod()
    points = [nncodec.Bound(er=er) for er in (0.2, 0.001, 0.0)]
    for restores in (False, True):
        kit.check_chain(method, points, restores=restores)
    kit.check_space(method)
    kit.check_tiny(method, points)
    kit.check_exact(method, points[-1])
    for point in points:
        key, saved = kit.delta(method, point)
        kit.check_detached(method, point)
        kit.check_names(method, key, saved)
        kit.check_wrong_bases(method, saved, point)


def squares(tensors: dict[str, torch.Tensor]) -> float:
    return float(sum(tensor.square().sum() for tensor in tensors.values() if tensor.dim() > 1))


def test_nncodec_as_a_method_misses_no_more_than_its_bound(bench: SimpleNamespace) -> None:
    pytest.importorskip("nncodec", reason="pip install -r benchmarks/peers/requirements.txt")
    nncodec = importlib.import_module("peer_nncodec.method")
    method, held, sizes = nncodec.NNCodecMethod(), None, []
    for step in range(3):
        true = kit.taken(method, kit.training_state(step))
        before = {name: torch.zeros_like(tensor) for name, tensor in true.tensors.items()}
        before |= {} if held is None else held.state()
        for er in (0.02, 0.2):
            draft = method.draft(true.tensors, held, nncodec.Bound(er=er), true.hints)
            off = squares({name: true.tensors[name] - tensor for name, tensor in draft.decoded})
            moved = squares({name: true.tensors[name] - before[name] for name in before})
            assert 0 < off <= er * moved
            sizes.append(draft.size)
        held = draft.encode()[1]
    assert all(careful > bold for careful, bold in zip(sizes[::2], sizes[1::2], strict=True))
