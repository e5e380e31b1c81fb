"""Hidden words: what is hidden, what is scored, and a model that sees both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.language import MaskedData
from dynaquant_core.experiments.data import corpus, fingerprint, open_data
from dynaquant_core.experiments.data.dataset import IGNORED
from dynaquant_core.experiments.data.masked import HIDDEN, SPECIAL, UNKNOWN, Hiding, Masked, conceal
from dynaquant_core.experiments.models import build
from dynaquant_core.experiments.models.bert import Bert
from dynaquant_core.experiments.trainer import Trainer


def section(**changes: object) -> MaskedData:
    base = {
        "name": "masked",
        "source": "verse.txt",
        "search_tokens": 512,
        "heldout_tokens": 256,
        "context": 16,
    }
    return MaskedData.model_validate(base | changes)


@settings_of(deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_only_chosen_words_change_and_only_they_are_scored(
    count: int, length: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.choice([UNKNOWN, *range(SPECIAL, 9)], (count, length))
    seen, said = conceal(rows, Hiding(share, HIDDEN, SPECIAL, 9, UNKNOWN), rng)
    scored = said != IGNORED
    assert np.array_equal(seen[~scored], rows[~scored])
    assert np.array_equal(said[scored], rows[scored])
    assert not (rows[scored] == UNKNOWN).any()
    wanted = np.minimum(max(1, round(share * length)), (rows != UNKNOWN).sum(1))
    assert np.array_equal(scored.sum(1), wanted)


def test_of_the_chosen_eight_in_ten_are_hidden_and_one_is_wrong() -> None:
    rows = np.random.default_rng(0).integers(SPECIAL, 1000, (400, 100))
    seen, said = conceal(rows, Hiding(0.15, HIDDEN, SPECIAL, 1000), np.random.default_rng(1))
    scored = said != IGNORED
    hidden = (seen[scored] == HIDDEN).mean()
    shown = (seen[scored] == rows[scored]).mean()
    assert hidden == pytest.approx(0.8, abs=0.02)
    assert shown == pytest.approx(0.1, abs=0.02)


def test_a_batch_depends_on_seed_and_step_and_evaluation_on_nothing(workplace: Path) -> None:
    one, other = (open_data(section(), evaluation_batch=4) for _ in range(2))
    other.batch(5, 8)
    for a, b in zip(one.batch(5, 3), other.batch(5, 3), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.batch(5, 3)[0], one.batch(6, 3)[0])
    for mine, theirs in zip([*one.search, *one.heldout], [*other.search, *other.heldout], strict=True):
        assert all(map(torch.equal, mine, theirs))
    assert sum(inputs.numel() for inputs, _ in one.search) == 512
    assert sum(inputs.numel() for inputs, _ in one.heldout) == 256


def test_words_of_the_evaluation_sets_do_not_make_the_vocabulary() -> None:
    text = "one two three " * 200 + "late " * 32
    data = Masked(text, section(search_tokens=16, heldout_tokens=16, vocabulary=50), 1)
    assert data.classes == SPECIAL + 3
    assert all((inputs == UNKNOWN).all() for inputs, _ in (*data.search, *data.heldout))


def test_a_place_sees_both_sides() -> None:
    torch.manual_seed(0)
    model = Bert(20, layers=1, width=32, heads=4, context=12).eval()
    tokens = torch.randint(0, 20, (1, 12))
    for changed in (0, 11):
        other = tokens.clone()
        other[0, changed] = (other[0, changed] + 1) % 20
        with torch.no_grad():
            assert not torch.allclose(model(tokens)[0, 5], model(other)[0, 5], atol=1e-4)
    assert model.head.weight is model.wte.weight


def test_the_shipped_model_has_the_size_it_promises() -> None:
    model = build(load_experiment("bert_tiny"), 2050)
    assert 1.0e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.15e6


@pytest.fixture
def settings(tiny: dict[str, Any]) -> dict[str, Any]:
    data = section(context=16, batch=8).model_dump()
    return tiny | {"model": {"name": "bert", "layers": 1, "width": 32, "heads": 2}, "data": data}


def test_it_learns_and_scores_only_what_is_hidden(workplace: Path, settings: dict[str, Any]) -> None:
    rhyme = workplace.parent / "data" / "rhyme.txt"
    rhyme.write_text("one two buckle my shoe three four knock at the door " * 400, encoding="utf-8")
    settings = settings | {"data": settings["data"] | {"source": "rhyme.txt"}, "steps": 150}
    settings["optimizer"] = {"name": "adamw", "lr": 0.003, "schedule": "constant"}
    trainer = Trainer(validate(settings | {"evaluate": {"metric": "accuracy"}}, "tiny"))
    first = [trainer.advance() for _ in range(5)]
    last = [trainer.advance() for _ in range(150)][-5:]
    assert sum(last) < 0.7 * sum(first)
    inputs, targets = trainer.data.search[0]
    everywhere = torch.where(targets == IGNORED, inputs, targets)
    (accuracy,) = trainer.quality([(inputs, targets)])
    (loose,) = trainer.quality([(inputs, everywhere)])
    assert 0 < accuracy <= 1
    assert accuracy != loose


def test_a_pattern_joins_files_by_name(workplace: Path) -> None:
    root = workplace.parent / "data"
    for name in ("part_2", "part_1"):
        (root / f"{name}.txt").write_text(name, encoding="utf-8")
    assert corpus.read("part_*.txt", 100) == "part_1part_2"
    assert corpus.read(str(root / "part_*.txt"), 100) == "part_1part_2"
    assert fingerprint(section(source="part_*.txt")) != fingerprint(section(source="part_1.txt"))
    with pytest.raises(ExperimentError, match=r"'none_\*.txt' matches no file, neither there"):
        corpus.read("none_*.txt", 100)


def test_bad_input_is_one_clear_error(workplace: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ExperimentError, match="words are too few for 100000 search"):
        open_data(section(search_tokens=100_000), evaluation_batch=4)
    with pytest.raises(ConfigError, match=r"data.mask: expected greater than 0, got 0"):
        validate(settings | {"data": settings["data"] | {"mask": 0}}, "tiny")
    with pytest.raises(ConfigError, match="model 'bert' reads data 'masked', not 'text'"):
        validate(settings | {"data": {"name": "text", "source": "verse.txt"}}, "tiny")
