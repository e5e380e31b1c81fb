"""What would go wrong after hours of work is said at once."""

from collections import defaultdict
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import dynaquant_core as dq
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import PluginOptions, PluginRun
from tests.gloo import a_group_of_one
from tests.training.models import EXACT, build, train


class Kept:
    """Something of a user's in ``extra``."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.fixture
def alone(tmp_path):
    """A group of this process."""
    with a_group_of_one(tmp_path):
        yield


def gathered(model):
    """Sharded, and its parameters whole for the moment, as between a forward and its backward pass."""
    fully_shard(model)
    model.unshard()


@pytest.mark.filterwarnings("ignore")  # torch's own, about a group of one without a device
@pytest.mark.parametrize(
    "share",
    [
        partial(FullyShardedDataParallel, device_id=torch.device("cpu")),
        partial(FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=True),
        fully_shard,
        gathered,
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_sharded_model_is_refused_before_anything_is_asked_of_other_ranks(tmp_path, alone, share, inside):
    """Each rank would get the moments of the one that saved, or wait for ranks that do not save.

    What was wrapped may be given by the variable that it had before: its parameters are shards all the same.
    """
    inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    model = None if (shared := share(inner)) is None or inside else shared
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"is sharded .* alone or under DDP"):
        dq.Checkpointer(
            tmp_path / "run", nn.ModuleDict({"net": inner if model is None else model}), optimizer
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")  # torch's own, about its functional optimizers
def test_an_optimizer_that_keeps_a_share_of_the_state_is_refused_before_the_first_save(tmp_path, alone):
    """What it would save could not be restored: its state_dict() raises before it was gathered."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes two seconds

    model = nn.Linear(8, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    with pytest.raises(ConfigError, match=r"ZeroRedundancyOptimizer keeps the state .* inside it, or save"):
        dq.Checkpointer(tmp_path / "run", model, {"net": optimizer})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variable", "said"), [("THREADS", "four"), ("THREADS", "0"), ("THREADS", "2.5"), ("DEADLINE", "-1")]
)
def test_a_wrong_word_of_the_environment_is_refused_before_the_first_save(
    tmp_path, monkeypatch, variable, said
):
    monkeypatch.setenv(f"DYNAQUANT_{variable}", said)
    refused = pytest.raises(ConfigError, match=f"DYNAQUANT_{variable} must be .* '{said}'")
    with refused:
        PluginRun(PluginOptions(), framework="none")
    if variable == "THREADS":  # a Checkpointer waits for no rank
        with refused:
            dq.Checkpointer(tmp_path / "run", *build())
    assert not (tmp_path / "run").exists()


def test_models_whose_tensors_share_a_name_are_refused(tmp_path):
    """The optimizer's state is by name: half of it was gone after a restore, without a word."""
    models = {"a": nn.ModuleDict({"b": nn.Linear(2, 2)}), "a.b": nn.Linear(2, 2)}
    with pytest.raises(ConfigError, match=r"under the name 'a\.b\.weight'"):
        dq.Checkpointer(tmp_path, models)


def test_a_wrapper_whose_own_tensor_hides_one_inside_is_refused(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self._orig_mod = nn.Linear(2, 2)
            self.weight = nn.Parameter(torch.ones(()))

    with pytest.raises(ConfigError, match="under the name 'weight'"):
        dq.Checkpointer(tmp_path, Scaled())


def test_tied_tensors_share_names_as_they_like(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(2, 2)})
    model["b"] = torch.compile(model["a"], backend="eager")
    dq.Checkpointer(tmp_path, {"x": model, "y": model}).close()


def test_what_no_checkpoint_can_hold_is_said_after_the_first_step(tmp_path, caplog):
    model, optimizer = build()
    sampler = Kept({"seen": defaultdict(int)})
    with dq.Checkpointer(tmp_path, model, optimizer, every=100, extra={"sampler": sampler}) as checkpoints:
        train(model, optimizer, checkpoints, 1)
        assert caplog.text.count("no checkpoint can be saved while this is so") == 1
        assert "extra.sampler.seen" in caplog.text
        train(model, optimizer, checkpoints, 2)
        assert caplog.text.count("no checkpoint can be saved while this is so") == 1


def test_sparse_momentum_is_said_after_the_first_step(tmp_path, caplog):
    """Not before: whether gradients of such an embedding are sparse depends on what else uses its weight."""
    for tied in (False, True):
        caplog.clear()
        embedding, optimizer = build_sparse()
        with dq.Checkpointer(tmp_path / str(tied), embedding, optimizer, every=100) as checkpoints:
            found = embedding(torch.tensor([1, 3]))
            (found @ embedding.weight.t() if tied else found).square().sum().backward()
            optimizer.step()
            checkpoints.step()
        assert ("momentum_buffer' is of layout torch.sparse_coo" in caplog.text) != tied


def build_sparse():
    embedding = nn.Embedding(9, 4, sparse=True)
    return embedding, torch.optim.SGD(embedding.parameters(), lr=0.1, momentum=0.9)


def test_what_can_be_saved_is_passed_over_in_silence(tmp_path, caplog):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=3, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 4)
    assert caplog.text == ""


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_folder_of_checkpoints_that_was_not_restored_is_said_at_the_first_step(tmp_path, caplog, on_error):
    """A restore() that was forgotten showed at the first save, an hour later."""
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT) as first:
        train(model, optimizer, first, 1)
    files = sorted(tmp_path.glob("*"))
    caplog.clear()
    again = dq.Checkpointer(tmp_path, model, optimizer, every=1000, on_error=on_error, **EXACT)
    if on_error == "raise":
        with pytest.raises(dq.StoreNotEmptyError, match="restore from it"):
            train(model, optimizer, again, 1)
    train(model, optimizer, again, 2)
    assert caplog.text.count("restore from it") == (on_error == "warn")
    assert sorted(tmp_path.glob("*")) == files
    with dq.Checkpointer(tmp_path, model, optimizer, every=1000, **EXACT) as other:  # no lock was taken
        assert other.restore() == 1
        train(model, optimizer, other, 1)
    again.close()


def test_so_is_one_whose_checkpoints_do_not_fit(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT) as first:
        train(model, optimizer, first, 1)
    other, trained = build(width=64)
    with dq.Checkpointer(tmp_path, other, trained, every=1000, **EXACT) as again:
        with pytest.raises(dq.StateMismatchError):
            again.restore()
        with pytest.raises(dq.StoreNotEmptyError, match="could not be restored"):
            train(other, trained, again, 1)


class Weighted(nn.Module):
    """A criterion with parameters, which the optimizer trains beside the model."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(8))


def test_what_is_trained_in_extra_is_in_the_checkpoint_and_nobody_is_alarmed(tmp_path, caplog):
    def run():
        torch.manual_seed(0)
        model, criterion = nn.Linear(8, 2), Weighted()
        optimizer = torch.optim.AdamW([*criterion.parameters(), *model.parameters()], lr=0.1)
        return model, criterion, optimizer

    model, criterion, optimizer = run()
    with dq.Checkpointer(
        tmp_path, model, optimizer, every=1, extra={"criterion": criterion}, **EXACT
    ) as checkpoints:
        assert checkpoints.restore() == 0
        model(criterion.weights).sum().backward()
        optimizer.step()
        checkpoints.step()
    same, again, other = run()
    with dq.Checkpointer(tmp_path, same, other, extra={"criterion": again}, **EXACT) as checkpoints:
        assert checkpoints.restore() == 1
    assert torch.equal(again.weights, criterion.weights)
    assert torch.equal(other.state[again.weights]["exp_avg"], optimizer.state[criterion.weights]["exp_avg"])
    assert "is in no checkpoint" not in caplog.text


def test_a_stranger_beside_what_is_in_extra_is_still_said(tmp_path, caplog):
    criterion, other = Weighted(), Weighted()
    optimizer = torch.optim.AdamW([*criterion.parameters(), *other.parameters()], lr=0.1)
    dq.Checkpointer(tmp_path, nn.Linear(8, 2), optimizer, extra={"criterion": criterion}).close()
    assert "1 of 2 tensors that the optimizer trains are no parameters of the model" in caplog.text
