import math
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from dynaquant_core.errors import ConfigError, EvaluationError, UnsupportedStateError
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training.checkpointer import Checkpointer
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.rng import rng_state
from dynaquant_core.training.trial import Trial
from tests.training.models import Net, bits, evaluate_net, seed_everything


def live_tensors(model):
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.dim() > 1}


def test_evaluate_takes_nothing_or_the_model():
    model = Net()
    assert Evaluation(lambda: 1.0, model)().values == (1.0,)
    assert Evaluation(lambda net: [float(net is model)], model)().values == (1.0,)
    assert Evaluation(lambda net=None: float(net is None), model)().values == (1.0,)
    pair = {"a": model, "b": Net()}
    assert Evaluation(lambda models: float(models is pair), pair)().values == (1.0,)


@pytest.mark.parametrize("evaluate", [lambda a, b: 0.0, lambda *, key: 0.0, 3.0])
def test_any_other_signature_is_refused_at_once(evaluate):
    with pytest.raises(ConfigError, match="evaluate"):
        Evaluation(evaluate, Net())


@pytest.mark.parametrize(
    ("result", "values"),
    [
        (2, (2.0,)),
        (np.float32(0.5), (0.5,)),
        (torch.tensor(1.5), (1.5,)),
        ([1.0, torch.tensor(2.0)], (1.0, 2.0)),
        (torch.tensor([1.0, 2.0], requires_grad=True), (1.0, 2.0)),
        (np.array([3.0]), (3.0,)),
    ],
)
def test_numbers_and_one_a_batch_are_taken(result, values):
    assert Evaluation(lambda: result, Net())().values == values


@pytest.mark.parametrize("result", [None, "good", {"loss": 1.0}, [], [[1.0]], torch.zeros(2, 2)])
def test_anything_else_is_an_evaluation_error(result):
    with pytest.raises(EvaluationError, match="evaluate returned"):
        Evaluation(lambda: result, Net())()


def test_an_exception_of_the_user_is_chained():
    def evaluate():
        raise KeyError("batch")

    with pytest.raises(EvaluationError, match="KeyError") as caught:
        Evaluation(evaluate, Net())()
    assert isinstance(caught.value.__cause__, KeyError)

    def batches():
        yield 1.0
        raise KeyError("batch")

    with pytest.raises(EvaluationError, match="KeyError"):
        Evaluation(batches, Net())()


def test_it_runs_in_evaluation_mode_without_gradients_from_the_same_random_numbers():
    model, seen = Net(), []

    def evaluate():
        seen.append((model.training, model.norm.training, torch.is_grad_enabled()))
        return float(torch.rand(1))

    evaluation = Evaluation(evaluate, model)
    assert evaluation() == evaluation()
    assert seen == [(False, False, False)] * 2
    assert model.training
    assert torch.is_grad_enabled()


def test_an_average_in_extra_is_measured_in_evaluation_mode_and_stays_as_it_was(tmp_path):
    model, seen = Net(), []
    average = AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(32, 16)

    def evaluate():
        seen.append(average.training)
        return average(inputs).square().mean()

    average(inputs)  # running statistics of its own
    before = bits(average.state_dict())
    with Checkpointer(tmp_path, model, optimizer, extra={"ema": average}, evaluate=evaluate) as saver:
        saver.save()
    assert set(seen) == {False}
    assert average.training
    assert bits(average.state_dict()) == before
    stored = CheckpointStore(tmp_path).load()["extra"]["ema"]
    buffers = {f"module.{name}" for name, _ in model.named_buffers()}
    assert bits({name: stored[name] for name in buffers}) == bits(
        {name: average.state_dict()[name] for name in buffers}
    )


class Spectral(nn.Module):
    """As layers over frequencies have it: a buffer that is only marked as conjugated."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("there", torch.fft.fft(torch.eye(16)))
        self.register_buffer("back", self.there.conj())

    def forward(self, inputs):
        return ((self.linear(inputs).to(self.there.dtype) @ self.there) @ self.back).real / 16


MAKERS = {
    "conjugated": Spectral,
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))),
    "traced": lambda: torch.jit.trace(nn.Linear(16, 16), torch.randn(2, 16)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", MAKERS)
def test_unusual_modules_are_measured_and_stay_as_they_were(tmp_path, kind):
    model = MAKERS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(32, 16)
    with Checkpointer(
        tmp_path, model, optimizer, every=1, evaluate=lambda: model(inputs).square().mean() + torch.rand(1)
    ) as saver:
        model(inputs).sum().backward()
        optimizer.step()
        before = bits([dict(model.state_dict()), dict(model.named_buffers()), torch.get_rng_state()])
        saver.step()
        saver.wait()
        assert bits([dict(model.state_dict()), dict(model.named_buffers()), torch.get_rng_state()]) == before
    assert saver.last.met


def test_a_tensor_that_no_file_takes_is_named_by_the_save_not_by_the_beginning(tmp_path):
    model = nn.Linear(16, 16)
    model.register_buffer("edges", torch.eye(16).to_sparse())
    saver = Checkpointer(tmp_path, model, evaluate=lambda: model(torch.ones(1, 16)).sum())
    with pytest.raises(UnsupportedStateError, match="edges"):
        saver.save()
    saver.close()


def test_candidates_are_measured_inside_autocast_with_their_own_weights():
    layer = nn.Linear(4, 1, bias=False)
    data = torch.ones(1, 4)
    with torch.autocast("cpu", torch.bfloat16):
        layer(data)  # leaves a cast of the live weights in the cache
        with Trial({"weight": layer.weight.detach()}, Evaluation(lambda: float(layer(data)), layer)) as trial:
            assert trial.measure([("weight", torch.full((1, 4), 2.0))]).values == (8.0,)
        assert float(layer(data).detach()) != 8.0


def everything(model):
    return bits([model.state_dict(), rng_state(), [module.training for module in model.modules()]])


def test_a_trial_measures_the_candidate_and_leaves_the_model_bit_for_bit():
    seed_everything()
    model = Net()
    model.head.weight.data[0, 0] = float("nan")
    live, before = live_tensors(model), everything(model)
    candidate = {name: torch.zeros_like(tensor) for name, tensor in live.items()}
    with Trial(live, Evaluation(lambda net: float(net.head.weight.abs().sum()), model)) as trial:
        assert math.isnan(trial.reference().mean)
        assert trial.measure(candidate.items()).mean == 0.0
        assert everything(model) == before
    assert everything(model) == before


def test_the_model_is_whole_after_evaluate_raised_or_the_draft_broke_half_way():
    model = Net()
    live, before = live_tensors(model), everything(model)

    def broken():
        name, tensor = next(iter(live.items()))
        yield name, torch.zeros_like(tensor)
        raise OSError("lost")

    def evaluate(net):
        net.train()
        evaluate_net(net)
        raise RuntimeError("no data")

    with Trial(live, Evaluation(evaluate, model)) as trial:
        with pytest.raises(EvaluationError):
            trial.measure((name, torch.zeros_like(tensor)) for name, tensor in live.items())
        assert everything(model) == before
        with pytest.raises(OSError, match="lost"):
            trial.measure(broken())
        assert everything(model) == before


def test_tied_and_transposed_weights_come_back():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.detach().t())  # another view of the same memory
    live, before = live_tensors(model), bits(model.state_dict())
    with Trial(live, Evaluation(lambda: 0.0, model)) as trial:
        trial.measure((name, torch.zeros(8, 8)) for name in live)
    assert bits(model.state_dict()) == before


class CtrlC(dict):
    """Live tensors; a Ctrl-C comes when one is asked for the ``at``-th time, and another right after it."""

    at = 0

    def __getitem__(self, name):
        self.at -= 1
        if self.at in (0, -1):
            signal.raise_signal(signal.SIGINT)
        return super().__getitem__(name)


@pytest.mark.parametrize("share", [0.2, 1.0, 1.5, 2.0])
def test_the_model_is_whole_after_a_ctrl_c_wherever_it_lands(share):
    model = Net()
    live, before = CtrlC(live_tensors(model)), everything(model)
    candidate = {name: torch.zeros_like(tensor) for name, tensor in live.items()}

    def measure():
        with Trial(live, Evaluation(lambda: 0.0, model)) as trial:
            live.at = round(share * len(live))
            trial.measure(candidate.items())

    with pytest.raises((KeyboardInterrupt, SystemExit)):  # the latter where Composer is: it has a handler
        measure()
    assert live.at < 0
    assert everything(model) == before


def test_an_expanded_weight_is_measured_and_comes_back():
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(torch.arange(3.0).expand(3, 3))
    live, before = live_tensors(model), bits(model.state_dict())
    with Trial(live, Evaluation(lambda: float(model.weight.sum()), model)) as trial:
        assert trial.measure([("weight", torch.ones(3, 3))]).mean == 9.0
    assert bits(model.state_dict()) == before


class Merging(nn.Linear):
    """As LoRA layers do it: in evaluation mode the product is part of the (frozen) weight."""

    def __init__(self, width):
        super().__init__(width, width)
        self.a, self.b = nn.Parameter(torch.randn(4, width)), nn.Parameter(torch.zeros(width, 4))
        self.weight.requires_grad_(False)
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (self.b @ self.a) * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, inputs):
        out = super().forward(inputs)
        return out if self.merged else out + inputs @ self.a.T @ self.b.T


@pytest.mark.parametrize("exact", [(), ("*weight",)])
def test_a_module_that_merges_in_evaluation_mode_trains_on_as_without_us(tmp_path, exact):
    def train(folder):
        torch.manual_seed(0)
        model = nn.Sequential(Merging(64), nn.Tanh(), Merging(64))
        model[2].eval()  # a part that is kept in evaluation mode stays so, and merged
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], 1e-2)
        inputs, targets = torch.randn(128, 64), torch.randn(128, 64)

        def evaluate():
            return (model(inputs) - targets).square().mean().item()

        saved = None
        if folder is not None:
            saved = Checkpointer(folder, model, optimizer, every=3, evaluate=evaluate, exact=exact)
        for _ in range(8):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            if saved is not None:
                saved.step()
        if saved is not None:
            saved.close()
            assert all(CheckpointStore(folder).info(step).met for step in (3, 6))
        return (
            bits(model.state_dict()),
            [module.training for module in model.modules()],
            model[0].merged,
            model[2].merged,
        )

    assert train(tmp_path) == train(None)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("exact", [(), ("0.weight",), "*"])
def test_an_embedding_that_shortens_its_rows_as_it_is_read_trains_on_as_without_us(tmp_path, kind, exact):
    """Of a table that was kept exact, evaluate shortened rows that no step had read."""

    def train(folder):
        torch.manual_seed(0)
        model = nn.Sequential(kind(64, 16, max_norm=1.0), nn.Flatten(), nn.Linear(16, 8))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        words, targets = torch.arange(64)[:, None], torch.randn(64, 8)

        def evaluate():
            return (model(words) - targets).square().mean().item()

        saved = None
        if folder is not None:
            saved = Checkpointer(folder, model, optimizer, every=2, evaluate=evaluate, exact=exact)
        for _ in range(6):
            batch = torch.randint(0, 64, (8,))
            optimizer.zero_grad()
            (model(words[batch]) - targets[batch]).square().mean().backward()
            optimizer.step()
            if saved is not None:
                saved.step()
        if saved is not None:
            saved.close()
        return bits(model.state_dict())

    assert train(tmp_path) == train(None)


@pytest.mark.parametrize("way", ["cast", "replaced"])
def test_an_evaluate_that_moves_the_model_measures_the_candidates(tmp_path, way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    inputs = torch.randn(256, 32)
    before, objects = bits(model.state_dict()), list(model.parameters())
    places = [weight.data_ptr() for weight in objects]

    def evaluate():
        if way == "replaced":
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())
        found = (model.double()(inputs.double()) - inputs).square().mean().item()
        model.float()
        return found

    with Checkpointer(tmp_path, model, evaluate=evaluate) as checkpoints:
        checkpoints.save()
    assert CheckpointStore(tmp_path).info(0).met
    assert bits(model.state_dict()) == before
    assert all(now is then for now, then in zip(model.parameters(), objects, strict=True))
    assert [weight.data_ptr() for weight in model.parameters()] == places
