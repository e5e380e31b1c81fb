"""What an ablation measures beyond whole saves: coders of the same codes, and the fewest bins."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.coding.registry import codec_by_name
from dynaquant_core.delta import cyclic_delta
from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import Results, ablation_parts, events, run_experiment
from dynaquant_core.experiments.ablation import coders
from dynaquant_core.experiments.ablation.coders import coded_bytes
from dynaquant_core.experiments.ablation.fewest_bins import fewest_bins, points_by_bins
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.recording import Recording
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.search.quality import Quality, degradation
from tests.experiments.conftest import enter_workplace, tiny_settings

EXAMPLES = settings(max_examples=60, deadline=None)
AXIS = "axis={key: threshold, values: [0.05]}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the codes of a run were coded by every coder."""
    folder = tmp_path_factory.mktemp("measures")
    with pytest.MonkeyPatch.context() as patch:
        path = enter_workplace(folder, patch) / "tiny.yaml"
        kind = {"kind": "ablate", "measure": "coders", "method": "dynaquant", "steps": 30}
        path.write_text(yaml.safe_dump(tiny_settings() | kind), encoding="utf-8")
        run_experiment(path, [AXIS, "output=coded"])
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, back in that place."""
    return enter_workplace(place, monkeypatch)


codes = st.lists(st.integers(0, 9), min_size=1, max_size=400).map(lambda found: np.array(found, np.uint8))


@EXAMPLES
@given(codes, st.randoms(use_true_random=False), st.booleans())
def test_sizes_are_those_of_payloads_that_decode(now: Any, random: Any, based: bool) -> None:
    before = now.copy()
    random.shuffle(before)
    base = before if based else None
    sizes = coded_bytes(now, base)
    levels = 1 + int(max(now.max(), before.max()))
    given_to = cyclic_delta(before, now, levels=levels) if based else now
    assert sizes["HE"] == len(codec_by_name("huffman").encode(given_to))
    assert sizes["RLE+HE"] == len(codec_by_name("rle_huffman").encode(given_to))
    assert sizes["rearranged"] == len(codec_by_name("paper").encode(now, base))
    assert sizes["ours"] <= now.nbytes


def test_a_coder_that_loses_a_code_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(now: Any, base: Any) -> Any:
        number, payload, values, context = coders._by_name("huffman", now, None)
        return number, payload, values + 1, context

    monkeypatch.setattr(coders, "CODERS", {"forgetful": forgetful})
    with pytest.raises(
        ExperimentError, match="coder forgetful: what was written of 3 codes decodes to others"
    ):
        coded_bytes(np.array([1, 2, 1], np.uint8), None)


def test_ours_and_the_side_are_what_the_files_hold(here: Path) -> None:
    path = here / "coded" / "results.json"
    (run,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert [entry["step"] for entry in run["coders"]] == [10, 20, 30]
    for entry, saved in zip(run["coders"], run["checkpoints"], strict=True):
        if saved["kind"] == "delta" or entry["step"] == 10:
            stored = saved["parts"]["weight"]["stored_bytes"]
            exact_vectors = saved["parts"]["weight"]["raw_bytes"] - entry["raw_bytes"]
            assert 0 <= stored - entry["side_bytes"] - entry["bytes"]["ours"] <= exact_vectors + 64
        assert entry["raw_bytes"] == 4 * entry["coded_weights"]
        assert list(entry["bytes"]) == ["HE", "RLE+HE", "rearranged", "ours"]
    (part, *_) = [part for part in ablation_parts([run]) if part.title.startswith("Coders")]
    assert [row["step"] for row in part.rows] == ["10", "20", "30", "whole run"]
    whole = sum(entry["bytes"]["HE"] + entry["side_bytes"] for entry in run["coders"])
    ratio = sum(entry["raw_bytes"] for entry in run["coders"]) / whole
    assert part.rows[-1]["HE"].startswith(f"{ratio:.1f}x")
    assert (path.parent / "plots" / "coders-0.png").exists()


@EXAMPLES
@given(
    st.lists(st.integers(2, 256), min_size=1, max_size=60, unique=True),
    st.integers(1, 300),
    st.integers(1, 3),
)
def test_where_more_bins_are_never_worse_it_is_the_fewest(ladder: Any, needed: int, places: int) -> None:
    points = {bins: [(bins, place) for place in range(places)] for bins in ladder}

    def keeps(bins: int, point: Any) -> bool:
        return point[0] == bins and point[1] == places - 1 and bins >= needed

    found = fewest_bins(points, keeps, lambda: True)
    brute = [bins for bins in sorted(ladder) if bins >= needed]
    assert (found.bins, found.mark) == ((brute[0], "") if brute else (None, "x"))
    assert found.point == ((brute[0], places - 1) if brute else None)


@EXAMPLES
@given(st.sets(st.integers(2, 40)))
def test_whatever_the_surface_the_next_smaller_number_does_not_do(good: set[int]) -> None:
    found = fewest_bins({bins: [bins] for bins in range(2, 41)}, lambda b, _: b in good, lambda: True)
    if 40 in good:
        assert found.bins in good
        assert found.bins == 2 or found.bins - 1 not in good
    else:
        assert (found.bins, found.mark) == (None, "x")


def test_a_search_that_runs_out_of_time_says_so() -> None:
    left = iter([True] * 3 + [False] * 9)
    found = fewest_bins({bins: [bins] for bins in range(2, 99)}, lambda b, _: b > 30, lambda: next(left))
    assert (found.bins, found.mark) == (None, "T")


@pytest.mark.parametrize(
    ("method", "axis", "bins"),
    [
        ("dynaquant", "bins", list(range(2, 65))),
        ("cnr", "bins", list(range(2, 257))),
        ("gobo", "bins", list(range(2, 257))),
        ("qd", "maximum", [2, 4, 8, 16, 32, 64, 128, 256]),
    ],
)
def test_every_number_of_bins_that_a_method_takes_is_tried(method: str, axis: str, bins: list[int]) -> None:
    space = resolve_method(method).space(gradients=True)
    pruning = "prune" if method == "dynaquant" else None
    points = points_by_bins(space, axis, pruning=pruning, embeddings=False)
    assert sorted(points) == bins
    assert all(getattr(point, axis) == number for number, found in points.items() for point in found)
    assert all(len(set(found)) == len(found) for found in points.values())


@pytest.mark.usefixtures("one_thread")
def test_fewest_bins_of_real_checkpoints_and_a_run_that_goes_on(here: Path) -> None:
    overrides = ["measure=bins", "axis={key: threshold, values: [0.0005]}", "output=binned"]
    results = run_experiment("tiny.yaml", overrides)
    (run,) = results.data["runs"]
    assert [entry["step"] for entry in run["bins"]] == [10, 20, 30]
    (settled,) = expand(load_experiment("tiny.yaml", overrides))
    trainer = Trainer(settled)
    (folder,) = Path("runs/.recordings").iterdir()
    for entry in run["bins"]:
        if entry["bins"] is not None:
            kept = {
                bins: meets(folder, entry["step"], bins, trainer)
                for bins in (entry["bins"], entry["bins"] - 1)
            }
            assert kept[entry["bins"]]
            assert entry["bins"] == 2 or not kept[entry["bins"] - 1]
    assert any(entry["bins"] for entry in run["bins"])
    with results.path.with_suffix(".csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert int(row["evaluations"]) == sum(entry["evaluations"] for entry in run["bins"]) > 0
    assert {row[name] for name in ("checkpoints", "met", "keys", "stored_bytes", "search_seconds")} == {""}
    assert_goes_on(results, overrides)


def meets(folder: Path, step: int, bins: int, trainer: Trainer) -> bool:
    """Whether any point of so many bins keeps the threshold, by another way: through the method alone."""
    method, tree = resolve_method("dynaquant"), Recording(folder, (10, 20, 30)).load(step)
    weights = tree["state"]["model"]
    state = {name: value for name, value in weights.items() if value.dim() > 1 and value.numel() >= 256}
    assert torch.equal(state.pop("head.weight"), state["wte.weight"])  # tied
    trainer.model.load_state_dict(weights)
    reference = Quality.of(trainer.quality(trainer.data.search))
    gradients = {name: tree["gradients"][name] for name in state if name in tree["gradients"]}
    kinds = {"w": "embedding", "blocks.0.attn": "attention", "blocks.0": "linear"}
    types = {name: next(kinds[start] for start in kinds if name.startswith(start)) for name in state}
    for protect in (0.01, 0.005, 0.0005):
        for embedding in (32, 16):
            point = method.config({"bins": bins, "protect": protect, "embedding_bins": embedding})
            draft = method.draft(state, None, point, Hints(gradients=gradients, layer_types=types))
            if all(
                book.centres.size <= bins for name, book in draft.books.items() if types[name] != "embedding"
            ):
                decoded = dict(draft.decoded)
                with torch.no_grad():
                    trainer.model.load_state_dict(
                        {**weights, **decoded, "head.weight": decoded["wte.weight"]}
                    )
                found = degradation(reference, Quality.of(trainer.quality(trainer.data.search)), "min")
                if found.mean <= 0.0005:
                    return True
    return False


def assert_goes_on(results: Results, overrides: list[str]) -> None:
    """Cuts the diary after its first checkpoint: the others are measured again, that one is not."""
    (run,), diary = results.data["runs"], results.path.parent / "run-0" / "events.jsonl"
    first = events.find(events.read(diary), "bins")[0]
    diary.write_text(json.dumps({**first, "seconds": 1234.5}) + "\n", encoding="utf-8")
    (again,) = run_experiment("tiny.yaml", overrides).data["runs"]
    assert again["bins"][0]["seconds"] == 1234.5
    for one, other in zip(run["bins"], again["bins"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
