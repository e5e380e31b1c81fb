"""Weights that are worked out of others: what a search sees of them, and what it leaves."""

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune

import dynaquant_core as dq
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.guard import untouched
from dynaquant_core.training.trial import Trial
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


def pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.2)


OLD_STYLE = {"weight norm": utils.weight_norm, "spectral norm": utils.spectral_norm, "pruned": pruned}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", OLD_STYLE)
def test_a_weight_that_a_hook_works_out_is_as_it_was_after_a_save(tmp_path, kind):
    model, optimizer = make(OLD_STYLE[kind])
    evaluate = measure(torch.randn(128, 32), torch.randn(128, 16))
    with dq.Checkpointer(tmp_path, model, optimizer, evaluate=evaluate) as saver:
        for _ in range(5):
            learn(model, optimizer, evaluate)
        evaluate(model)
        weight = model[0].weight
        before = bits(weight)
        saver.save()
        assert saver.wait().evaluations > 0
    assert model[0].weight is weight
    assert weight.requires_grad
    assert bits(weight) == before


def test_gradual_pruning_cuts_what_it_cuts_without_us(tmp_path):
    """The next mask goes by ``layer.weight``, which a search left as its last candidate."""

    def masks(folder):
        model, optimizer = make(pruned)
        evaluate = measure(torch.randn(128, 32), torch.randn(128, 16))
        saver = folder and dq.Checkpointer(folder, model, optimizer, every=5, evaluate=evaluate)
        found = []
        for _ in range(3):
            for _ in range(5):
                learn(model, optimizer, evaluate)
                evaluate(model)
                if saver:
                    saver.step()
            pruned(model[0])
            found.append(bits(model[0].weight_mask))
        if saver:
            saver.close()
        return found, bits(model.state_dict())

    assert masks(tmp_path) == masks(None)


class Rotary(nn.Module):
    """As implementations of rotary embeddings have it: a table that grows, and how far it goes."""

    def __init__(self):
        super().__init__()
        self.length, self.table, self.folded, self.seen = 0, None, None, torch.zeros(1)
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, length):
        self.seen += 1
        if length > self.length:
            self.length, self.table = length, torch.arange(float(length))
        if not self.training and self.folded is None:
            self.folded = self.weight.detach() * 2
        return self.table[:length].sum() + (self.weight * 2 if self.training else self.folded).sum()


def test_tables_counts_and_what_is_kept_of_a_candidate_are_as_they_were():
    model = Rotary()
    model(8)
    table = model.table
    with untouched([model]):
        model.eval()
        model(64)
    assert (model.table is table, model.length, model.folded) == (True, 8, None)
    assert model.seen.tolist() == [1.0]
    assert model(16).isfinite()
    live = {"weight": model.weight.detach()}
    with Trial(live, Evaluation(lambda: model(1), model)) as trial:
        assert trial.reference().values == (32.0,)
        assert trial.measure([("weight", torch.zeros(4, 4))]).values == (0.0,)


def test_a_plain_tensor_that_was_added_goes_and_one_that_was_deleted_or_resized_is_back():
    model = nn.Linear(2, 2)
    model.kept, model.grown = torch.ones(2), torch.ones(2)
    kept, grown = model.kept, model.grown
    with untouched([model]):
        model.added = torch.ones(2)
        del model.kept
        model.grown.resize_(4, 4).zero_()
    assert model.kept is kept
    assert model.grown is grown
    assert grown.tolist() == [1.0, 1.0]
    assert not hasattr(model, "added")
