"""A threshold is a share of what a model has learnt, where that is less than its metric comes to."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import EvaluationError
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.search import Decision, Manager, Quality, SearchState
from dynaquant_core.search.learnt import LEAST, learnt
from dynaquant_core.search.speculate import Speculation
from dynaquant_core.search.spoilt import SpoiltConfig, SpoiltDraft

SPACE = Lattice().space(gradients=False)
NAUGHT = 2.3


class Learner:
    """A model whose loss fell from 2.3; a candidate's degradation grows with the square of its scale.

    Args:
        loss: what it fell to.
        naught: the loss of a spoilt model; an exception: evaluate raises that.
    """

    def __init__(self, loss: float, naught: float | Exception = NAUGHT) -> None:
        self.loss, self.naught, self.spoilt = loss, naught, 0

    def measure(self, draft: Any) -> Quality:
        if isinstance(draft, SpoiltDraft):
            return self.of_spoilt()
        return self.of(draft.config)

    def of_spoilt(self) -> Quality:
        self.spoilt += 1
        if isinstance(self.naught, Exception):
            raise self.naught
        return Quality((self.naught,))

    def of(self, config: LatticeConfig) -> Quality:
        scale = 0.0 if isinstance(config.scale, str) else config.scale
        return Quality((self.loss * (1 + 0.01 * scale**2),))

    def size(self, config: LatticeConfig) -> int:
        return int(1e6 * (20.0 if isinstance(config.scale, str) else 6.0 - math.log2(config.scale)))

    def choose(self, state: SearchState, method: Lattice | None = None) -> Decision:
        space = SPACE if method is None else method.space(gradients=False)
        draft = lambda config: SimpleNamespace(config=config, size=self.size(config), is_key=True)  # noqa: E731
        return Manager().choose(space, draft, self.measure, Quality((self.loss,)), 0.01, "min", state)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [1.0, 1.7, 2.0, 2.2, 2.29])
def test_noise_may_cost_its_share_of_what_was_learnt(loss: float) -> None:
    decision = Learner(loss).choose(SearchState())
    allowed = 0.01 * min(1.0, max(LEAST, (NAUGHT - loss) / loss))
    assert decision.met
    assert 0.75 * allowed < decision.degradation.mean <= allowed * (1 + 1e-9)


def test_what_knows_nothing_is_measured_once_a_life() -> None:
    run = Learner(2.0)
    first = run.choose(SearchState())
    later = Learner(1.2)
    second = later.choose(first.state)
    assert (run.spoilt, later.spoilt) == (1, 0)
    assert second.config.scale > first.config.scale  # more is learnt, and more allowed
    again = Learner(1.2)
    again.choose(SearchState.from_dict(second.state.as_dict()))  # it may have another evaluate
    assert again.spoilt == 1


@pytest.mark.parametrize("naught", [math.nan, math.inf, EvaluationError("no answer")])
def test_where_it_cannot_be_measured_the_threshold_is_of_the_metric(naught: float | Exception) -> None:
    run = Learner(2.2, naught)
    decision = run.choose(SearchState())
    assert decision.config == Learner(2.2, 100.0).choose(SearchState()).config
    Learner(2.2, EvaluationError("not asked")).choose(decision.state)
    assert run.spoilt == 1


@pytest.mark.parametrize("max_noise", [None, 30.0])
def test_a_bound_of_ones_own_leaves_the_threshold_alone(max_noise: float | None) -> None:
    run = Learner(2.2)
    assert 0.0075 < run.choose(SearchState(), Lattice(max_noise=max_noise)).degradation.mean <= 0.01
    assert run.spoilt == 0


@pytest.mark.parametrize("naught", [2.3, math.nan])
def test_ranks_that_share_the_search_come_to_the_same(naught: float) -> None:
    alone = Learner(2.0, naught).choose(SearchState())
    run = Learner(2.0, naught)
    search = Speculation(Manager(), SPACE, run.size, 0.01, "min", SearchState())
    search.reference = Quality((2.0,))
    while (decision := search.decision()) is None:
        for spot in search.ahead(4):
            config = search.config(spot)
            spoilt = isinstance(config, SpoiltConfig)
            search.answer(spot, run.of_spoilt() if spoilt else run.of(config))
    assert decision.config == alone.config
    assert decision.state.naught == alone.state.naught


def test_the_share_of_other_metrics() -> None:
    assert learnt(0.5, 0.1, "max") == pytest.approx(0.8)
    assert learnt(0.11, 0.1, "max") == LEAST
    assert learnt(1e-6, 1.0, "min") == 1.0
    assert learnt(-100.0, -300.0, "max") == 1.0
    assert learnt(2.0, None, "min") == 1.0
    assert learnt(0.0, 0.0, "min") == LEAST


def test_a_network_near_chance_is_stored_finely(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    truth, held_out = torch.randn(64, 10), torch.randn(512, 64)

    @torch.no_grad()
    def evaluate() -> float:
        return nn.functional.cross_entropy(model(held_out), (held_out @ truth).argmax(1)).item()

    with dq.Checkpointer(tmp_path, model, optimizer, every=20, evaluate=evaluate) as checkpoints:
        for _ in range(40):
            inputs = torch.randn(32, 64)
            loss = nn.functional.cross_entropy(model(inputs), (inputs @ truth).argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checkpoints.step()
    early = dq.CheckpointStore(tmp_path).info(40)
    assert early.met
    assert early.degradation is not None
    assert early.degradation < 0.002  # a hundredth of what the loss fell by
