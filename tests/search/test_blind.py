"""An evaluate that does not depend on what is stored finds everything perfect: it is not believed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynaquant_core.errors import EvaluationError
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.search import Decision, Manager, Quality, SearchState
from dynaquant_core.search.speculate import Speculation
from dynaquant_core.search.spoilt import SpoiltConfig, SpoiltDraft, spoilable, spoilt

SPACE = replace(Lattice().space(gradients=False), by_learnt=False)  # test_learnt.py has that
SCALES = SPACE.axes["scale"]
REFERENCE = Quality((2.0, 3.0))

Seen = Callable[[Any, bool], Quality]


def size(config: Any) -> int:
    return 10**6 if isinstance(config.scale, str) else int(1e4 / config.scale)


class Run:
    """One checkpoint after the other; ``sees`` is asked for (scale, whether it is spoilt)."""

    def __init__(self, sees: Seen, size: Callable[[Any], int] = size) -> None:
        self.sees, self.size, self.state = sees, size, SearchState()
        self.asked: list[tuple[Any, bool]] = []

    def measure(self, draft: Any) -> Quality:
        self.asked.append((draft.config.scale, isinstance(draft, SpoiltDraft)))
        return self.sees(*self.asked[-1])

    def choose(self) -> Decision:
        self.asked = []
        decision = Manager().choose(
            SPACE, lambda config: SimpleNamespace(config=config, size=self.size(config), is_key=True),  # type: ignore[arg-type, return-value]
            self.measure, REFERENCE, 0.01, "min", self.state,
        )  # fmt: skip
        self.state = decision.state
        return decision

    def probes(self) -> int:
        return sum(spoilt for _, spoilt in self.asked)


def blind(scale: Any, is_spoilt: bool) -> Quality:
    return REFERENCE


def coarse(scale: Any, is_spoilt: bool) -> Quality:
    """An accuracy over few examples: no noise of the space changes one of them."""
    return Quality((2.5, 3.0)) if is_spoilt else REFERENCE


def raising(scale: Any, is_spoilt: bool) -> Quality:
    if is_spoilt:
        raise EvaluationError("evaluate raised: no answer.")
    return REFERENCE


def test_a_blind_evaluate_gives_the_careful_default_and_no_promise(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(blind)
    with caplog.at_level(logging.WARNING, logger="dynaquant_core"):
        decisions = [run.choose() for _ in range(5)]
    for decision in decisions:
        assert decision.config == decision.draft.config == SPACE.default
        assert decision.blind
        assert not {"met", "degradation"} & set(decision.report(REFERENCE))
        assert decision.report(REFERENCE)["quality"] == {"reference": 2.5, "search": 2.5}
    assert len([line for line in caplog.messages if "does not depend on what is stored" in line]) == 1


def test_a_metric_that_is_still_0_is_not_said_to_be_of_something_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An F1 before the model answers anything: the sentence sent its user looking for a fault in evaluate."""
    naught = Quality((0.0, 0.0))
    with caplog.at_level(logging.WARNING, logger="dynaquant_core"):
        decision = Manager().choose(
            SPACE, lambda config: SimpleNamespace(config=config, size=size(config), is_key=True),  # type: ignore[arg-type, return-value]
            lambda draft: naught, naught, 0.01, "max", SearchState(),
        )  # fmt: skip
    assert (decision.config, decision.blind) == (SPACE.default, True)
    assert "while it is 0, does not show it" in caplog.text
    caplog.clear()
    Run(blind).choose()
    assert "while it is 0" not in caplog.text


@pytest.mark.parametrize("most", [10**5, 1])
def test_what_is_bold_without_being_smaller_is_not_believed_either(most: int) -> None:
    """Where next to nothing moved, a delta of the careful default takes no more than any other."""
    run = Run(blind, lambda config: min(most, size(config)) if isinstance(config.scale, float) else 10**6)
    for _ in range(4):
        decision = run.choose()
        assert (decision.config, decision.blind) == (SPACE.default, True)


def test_a_blind_evaluate_is_asked_once_more_a_checkpoint() -> None:
    run = Run(blind)
    first, second = run.choose(), run.choose()
    assert first.exhaustive
    assert not second.exhaustive
    assert run.asked == [(SCALES[-1], False), (SCALES[-1], True)]
    assert second.evaluations == 2


@pytest.mark.parametrize("sees", [coarse, raising])
def test_a_coarse_metric_is_asked_once_and_believed(sees: Seen, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(sees)
    counts = []
    with caplog.at_level(logging.WARNING, logger="dynaquant_core"):
        for _ in range(5):
            decision = run.choose()
            assert (decision.config.scale, decision.met, decision.blind) == (SCALES[-1], True, False)
            assert decision.report(REFERENCE)["met"]
            counts.append(run.probes())
    assert counts == [1, 0, 0, 0, 0]
    assert not caplog.messages


def test_one_batch_that_differs_is_not_suspicious() -> None:
    run = Run(lambda scale, _: Quality((2.0, 3.0 if scale < SCALES[-1] else 3.0000001)))
    decision = run.choose()
    assert (decision.config.scale, run.probes()) == (SCALES[-1], 0)


def test_what_is_as_fine_as_the_default_is_not_suspicious() -> None:
    """Near the careful end noise is too small to be seen, and nothing coarser would be gained."""
    run = Run(lambda scale, _: REFERENCE if scale <= SPACE.default.scale else Quality((9.0, 9.0)))
    decision = run.choose()
    assert decision.config.scale <= SPACE.default.scale
    assert (run.probes(), decision.met) == (0, True)


def test_a_metric_that_begins_to_move_is_believed_from_then_on() -> None:
    """An untrained net answers the same whatever its weights are."""
    run = Run(blind)
    assert run.choose().blind
    run.sees = lambda scale, spoilt: Quality((9.0, 9.0)) if spoilt or scale > 1.0 else REFERENCE
    last = [run.choose() for _ in range(4)][-1]
    assert last.met
    assert not last.blind
    assert 0.5 < last.config.scale <= 1.0


def test_what_is_known_of_evaluate_stays_in_the_process() -> None:
    run = Run(coarse)
    run.choose()
    again = SearchState.from_dict(json.loads(json.dumps(run.state.as_dict())))
    assert (run.state.sees, again.sees) == (True, None)
    assert again == run.state  # else the same


@pytest.mark.parametrize("sees", [blind, coarse])
@pytest.mark.parametrize("members", [1, 4])
def test_a_shared_search_decides_the_same(sees: Seen, members: int) -> None:
    run, state = Run(sees), SearchState()
    for _ in range(3):
        search = Speculation(Manager(), SPACE, size, 0.01, "min", state)
        search.reference = REFERENCE
        while (decision := search.decision()) is None:
            for spot in search.ahead(members):
                config = search.config(spot)
                is_spoilt = isinstance(config, SpoiltConfig)
                search.answer(spot, sees((config.of if is_spoilt else config).scale, is_spoilt))
        lone = run.choose()
        assert (decision.config, decision.blind, decision.said, decision.evaluations, decision.state) == (
            lone.config, lone.blind, lone.said, lone.evaluations, lone.state,
        )  # fmt: skip
        state = decision.state


@pytest.mark.parametrize("shape", [(16, 16), (3, 5), (7,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spoilt_values_are_others_and_finite(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for tensor in (torch.randn(shape, dtype=dtype), torch.ones(shape, dtype=dtype)):
        found, before = spoilt(tensor), tensor.clone()
        assert (found.shape, found.dtype) == (tensor.shape, dtype)
        assert (found.isfinite() & (found != tensor)).float().mean() > 0.8
        assert torch.equal(tensor, before)


def test_a_spoilt_candidate_travels_as_data() -> None:
    config = Lattice().config({"scale": 4.0})
    tensors = {"w": torch.arange(6.0).reshape(2, 3)}

    def make(data: Any) -> Any:
        return SimpleNamespace(config=Lattice().config(data), is_key=True, decoded=tensors.items())

    data = json.loads(json.dumps(SpoiltConfig(config).as_dict()))
    draft = spoilable(make)(data)
    assert isinstance(draft, SpoiltDraft)
    assert draft.config == config
    assert torch.equal(dict(draft.decoded)["w"], spoilt(tensors["w"]))
