"""Weights that are worked out of others: what a search sees of them, and what it leaves."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import dynaquant_core as dq
from dynaquant_core.training.evaluation import Evaluation
from tests.training.models import bits


def make(wrap):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16))
    wrap(model[0])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def measure(inputs, targets):
    return lambda model: (model(inputs) - targets).square().mean()


def learn(model, optimizer, evaluate):
    optimizer.zero_grad()
    evaluate(model).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_cache_of_parametrised_weights_is_not_taken_for_a_candidate(tmp_path, kind):
    """A step inside of `parametrize.cached`: every candidate was as good as the weights themselves."""
    model, optimizer = make(kind)
    evaluate = measure(torch.randn(128, 32), torch.randn(128, 16))
    with dq.Checkpointer(tmp_path, model, optimizer, every=20, evaluate=evaluate) as saver:
        for _ in range(20):
            with parametrize.cached():
                learn(model, optimizer, evaluate)
                saver.step()
        info = saver.wait()
    assert info.met
    with torch.no_grad():
        assert float(evaluate(model)) == pytest.approx(info.quality["reference"], rel=1e-5)
        model.load_state_dict(dq.CheckpointStore(tmp_path).load()["model"])
        assert float(evaluate(model)) == pytest.approx(info.quality["search"], rel=1e-5)


def test_a_cache_of_parametrised_weights_is_as_it_was_after_an_evaluation():
    model, _ = make(parametrizations.weight_norm)

    def evaluate():
        with parametrize.cached():
            assert model[0].weight is model[0].weight
        return float(model[0].weight.sum())

    with parametrize.cached():
        weight = model[0].weight
        Evaluation(evaluate, model)()
        assert model[0].weight is weight
    assert model[0].weight is not weight
