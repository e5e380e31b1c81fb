"""The search reads what the trainer's own evaluation reads, by the user's own loaders."""

from itertools import islice

import pytest
import torch
from composer import Callback, Evaluator
from composer.metrics import CrossEntropy
from composer.models import ComposerClassifier
from composer.utils import dist, reproducibility
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from dynaquant_composer import batches
from dynaquant_core.errors import ConfigError
from tests.integrations.composer.kit import Net, digits, everything, fit, names, ours, trainer


class Seen(ComposerClassifier):
    """Records the labels of every batch that is evaluated, and takes no more than so many samples at once."""

    def __init__(self, module, most=10_000):
        super().__init__(module)
        self.most, self.seen = most, []

    def eval_forward(self, batch, outputs=None):
        if outputs is None:
            if len(batch[1]) > self.most:
                raise RuntimeError("CUDA out of memory. Tried to allocate")
            self.seen.append(batch[1].tolist())
        return super().eval_forward(batch, outputs)


def run_of(model, *callbacks, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return trainer(*callbacks, model=model, optimizers=optimizer, **options)


def seen_model(**options):
    reproducibility.seed_all(0)
    return Seen(Net(48), **options)


def test_a_subset_is_the_one_that_the_trainer_evaluates_on(tmp_path):
    """The set is sorted by label, as many are: the first samples in order would be zeros only."""
    images, labels = digits()[1].tensors
    order = labels.argsort()
    validation, model = TensorDataset(images[order], labels[order]), seen_model()
    sampler = dist.get_sampler(validation, shuffle=True)
    evaluator = Evaluator(
        label="eval",
        dataloader=DataLoader(validation, 60, sampler=sampler),
        metric_names=["CrossEntropy"],
        subset_num_batches=1,
        eval_interval="6ba",
    )
    sampler.set_epoch(3)
    searched = ours(tmp_path, "6ba")
    run = run_of(model, Before(searched, sampler), searched, eval_dataloader=evaluator, duration="6ba")
    run.fit()
    native, *measured = model.seen
    assert len(measured) > 1
    assert all(labels == native for labels in measured)  # in the same order, too
    assert len(set(native)) > 5
    native = float(run.state.eval_metrics["eval"]["CrossEntropy"].compute())
    assert searched.last.quality["reference"] == pytest.approx(native)
    assert sampler.epoch == 6  # as the trainer's evaluation left it


class Before(Callback):
    """Moves the sampler to another epoch than the search's; the search puts it back."""

    def __init__(self, saver, sampler):
        self.saver, self.sampler = saver, sampler

    def batch_start(self, state, logger):
        if int(state.timestamp.batch) == 3:
            self.sampler.set_epoch(77)
            before = dict(vars(self.sampler))
            self.saver._evaluate(state)()
            assert vars(self.sampler) == before
            state.model.seen.clear()


def test_drop_last_holds(tmp_path):
    validation, model = digits()[1], seen_model()
    loader = DataLoader(validation, 128, drop_last=True, sampler=dist.get_sampler(validation))
    run_of(model, ours(tmp_path), eval_dataloader=loader, duration="3ba").fit()
    assert {len(labels) for labels in model.seen} == {128}


class Halves(DataLoader):
    """A loader with a pass of its own."""

    def __iter__(self):
        for images, labels in super().__iter__():
            yield images[:50], labels[:50]


def test_a_loader_of_a_class_of_its_own_is_read_as_such(tmp_path):
    validation, model = digits()[1], seen_model()
    evaluator = Evaluator(
        label="eval",
        dataloader=Halves(validation, 100, sampler=dist.get_sampler(validation)),
        metric_names=["CrossEntropy"],
        device_eval_microbatch_size=50,
    )
    run_of(model, ours(tmp_path), eval_dataloader=evaluator, duration="3ba").fit()
    labels = validation.tensors[1].tolist()
    assert model.seen[:3] == [labels[:50], labels[100:150], labels[200:250]]


class Opened(Dataset):
    """Reads from what `opened` has put there, in a worker."""

    source = None

    def __len__(self):
        return 300

    def __getitem__(self, index):
        return self.source[index]


def opened(_):
    get_worker_info().dataset.source = digits()[1]


@pytest.mark.parametrize("stay", [False, True])
def test_workers_are_set_up_as_the_user_says(tmp_path, stay):
    dataset, model = Opened(), seen_model()
    loader = DataLoader(
        dataset,
        100,
        sampler=dist.get_sampler(dataset),
        num_workers=1,
        worker_init_fn=opened,
        persistent_workers=stay,
    )
    evaluator = Evaluator(label="eval", dataloader=loader)
    with batches.batches_of(evaluator, 0) as found:
        assert len(list(found)) == 3
    assert loader._iterator is None  # nor has a worker of the user's own loader been started
    callback = ours(tmp_path)
    run_of(model, callback, eval_dataloader=evaluator, duration="3ba").fit()
    assert callback.last.evaluations > 0


@pytest.mark.parametrize("size", [96, 97])
@pytest.mark.parametrize("subset", [-1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_of_three_ranks_reads_what_all_of_them_evaluate_on(monkeypatch, size, subset, drop_last):
    """Samples that native evaluation repeats to even ranks out, and then leaves out again, are not read."""
    monkeypatch.setattr(batches.dist, "get_world_size", lambda: 3)
    dataset, read = TensorDataset(torch.arange(size)), []
    for rank in range(3):
        sampler = DistributedSampler(dataset, 3, rank, drop_last=drop_last)
        evaluator = Evaluator(
            label="eval",
            dataloader=DataLoader(dataset, 8, sampler=sampler, drop_last=drop_last),
            subset_num_batches=subset,
        )
        with batches.batches_of(evaluator, 5) as found:
            read.append([samples.tolist() for [samples] in found])
        assert (sampler.epoch, sampler.rank, sampler.num_replicas) == (0, rank, 3)
    native = []
    for rank in range(3):
        sampler = DistributedSampler(dataset, 3, rank, drop_last=drop_last)
        sampler.set_epoch(5)
        loader = DataLoader(dataset, 8, sampler=sampler, drop_last=drop_last)
        native += [
            sample for [samples] in islice(loader, subset if subset > 0 else None) for sample in samples
        ]
    assert read[0] == read[1] == read[2]
    mine = [sample for samples in read[0] for sample in samples]
    assert sorted(mine) == sorted(set(map(int, native)))
    assert all(len(samples) == 8 for samples in read[0][:-1])


def test_ranks_that_cannot_read_alike_are_told_so(monkeypatch):
    monkeypatch.setattr(batches.dist, "get_world_size", lambda: 2)
    evaluator = Evaluator(label="eval", dataloader=[1, 2, 3], device_eval_microbatch_size=1)
    said = pytest.raises(ConfigError, match=r"evaluator 'eval' reads a stream.*give evaluate=")
    with said, batches.batches_of(evaluator, 0):
        pass


def test_memory_that_does_not_suffice_halves_the_microbatch(tmp_path):
    def memory(*callbacks):
        model = seen_model(most=60)
        evaluator = Evaluator(
            label="eval",
            dataloader=DataLoader(digits()[1], 100),
            metric_names=["CrossEntropy"],
            device_eval_microbatch_size=100,
            eval_interval="6ba",
        )
        run = run_of(model, *callbacks, eval_dataloader=evaluator, duration="6ba")
        evaluator.auto_microbatching = True  # what "auto" sets, on a GPU only
        with pytest.warns(RuntimeWarning, match="decreased from 100 -> 50"):
            run.fit()
        return evaluator.device_eval_microbatch_size, everything(run)

    assert memory(ours(tmp_path)) == memory()


def test_another_error_of_the_model_is_told(tmp_path):
    model = seen_model(most=60)
    with pytest.raises(Exception, match="out of memory"):
        run_of(model, ours(tmp_path), duration="3ba").fit()


class Looking(Callback):
    """Looks for the last checkpoint when training is over."""

    def __init__(self, folder):
        self.folder, self.found = folder, []

    def fit_end(self, state, logger):
        self.found = [(self.folder / "latest-rank0.pt").readlink().name, *names(self.folder)]


@pytest.mark.parametrize("interval", ["3ba", "5ba"])
def test_callbacks_that_come_first_find_the_last_checkpoint_at_the_end(tmp_path, interval):
    looking = Looking(tmp_path)
    fit(looking, ours(tmp_path, interval), width=256, duration="6ba")
    assert looking.found[0] == "ep0-ba6-rank0.pt"
    assert "ep0-ba6-rank0.pt" in looking.found[1:]


class TwiceMeasured(ComposerClassifier):
    def get_metrics(self, is_train):
        return super().get_metrics(is_train) | {"Surprise": CrossEntropy()}


@pytest.mark.parametrize("names", [("CrossEntropy", "CrossEntropy"), ("CrossEntropy", "Surprise")])
def test_evaluators_that_are_measured_differently_are_said(tmp_path, names, caplog):
    loader = DataLoader(digits()[1], 100)
    evaluators = [Evaluator(label=f"the {n}", dataloader=loader, metric_names=[n]) for n in names]
    run = run_of(TwiceMeasured(Net(48)), ours(tmp_path), eval_dataloader=evaluators, duration="3ba")
    run.fit()
    assert ("need not be on one scale" in caplog.text) == (names[0] != names[1])


class Unmeasured(ComposerClassifier):
    def get_metrics(self, is_train):
        return {}


def test_a_model_without_a_metric_is_saved_carefully(tmp_path, caplog):
    def run(*callbacks):
        reproducibility.seed_all(0)
        run = run_of(Unmeasured(Net(48)), *callbacks, duration="9ba")
        run.fit()
        return everything(run)

    callback = ours(tmp_path)
    assert run(callback) == run()
    assert callback.last.step == 9
    assert callback.last.evaluations == 0
    assert caplog.text.count("no evaluator has a metric") == 1


class Replacing(Callback):
    """Puts a copy in the model's place in the middle of training."""

    def batch_end(self, state, logger):
        if int(state.timestamp.batch) != 4:
            return
        reproducibility.seed_all(1)
        model = ComposerClassifier(Net(48))
        model.load_state_dict(state.model.state_dict())
        others = dict(zip(state.model.parameters(), model.parameters(), strict=True))
        [optimizer] = state.optimizers
        for group in optimizer.param_groups:
            group["params"] = [others[parameter] for parameter in group["params"]]
        for old, new in others.items():
            optimizer.state[new] = optimizer.state.pop(old)
        state.model = model


def test_a_model_that_takes_anothers_place_is_searched(tmp_path):
    callback = ours(tmp_path)
    run = fit(callback, Replacing(), duration="9ba")
    assert callback.last.step == 9
    assert callback.last.evaluations > 0
    assert everything(run) == everything(fit(Replacing(), duration="9ba"))
