"""Generators of loaders, transforms and models: training goes on as without the search."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from composer import DataSpec, Evaluator
from composer.models import ComposerClassifier
from composer.utils import reproducibility
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from tests.integrations.composer.kit import Net, digits, everything, fit, ours, trainer

MAKE = {
    "python": lambda: random.Random(0),
    "numpy": lambda: np.random.default_rng(0),
    "torch": lambda: torch.Generator().manual_seed(0),
}

#: Of this module, as scripts have it.
SHARED = random.Random(0)


def drawn(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return float(generator.random())


def stacked(items):
    return [torch.stack([image for image, _ in items]), torch.stack([label for _, label in items])]


class Scaling:
    """A collator that draws from a generator of its own."""

    def __init__(self, generator):
        self.generator = generator

    def __call__(self, items):
        images, labels = stacked(items)
        return [images * (0.8 + 0.4 * drawn(self.generator)), labels]


class Noisy(Dataset):
    def __init__(self, dataset, generator):
        self.dataset, self.generator = dataset, generator

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        return image * (0.8 + 0.4 * drawn(self.generator)), label


def of_collator(kind):
    collate = Scaling(MAKE[kind]())
    return [partial(DataLoader, collate_fn=collate)] * 2


def of_datasets():
    generator = random.Random(0)
    return [lambda data, size: DataLoader(Noisy(data, generator), size)] * 2


def of_module():
    def collate(items):
        images, labels = stacked(items)
        return [torch.stack([image * (0.8 + 0.4 * SHARED.random()) for image in images]), labels]

    SHARED.seed(0)
    return [partial(DataLoader, collate_fn=collate)] * 2


def of_batch_sampler():
    generator = torch.Generator().manual_seed(0)

    def evaluator(data, size):
        sampler = BatchSampler(RandomSampler(data, generator=generator), size, drop_last=False)
        loader = DataLoader(data, batch_sampler=sampler)
        return Evaluator(
            label="eval", dataloader=loader, metric_names=["CrossEntropy"], device_eval_microbatch_size=size
        )

    return partial(DataLoader, shuffle=True, generator=generator), evaluator


def of_transform():
    generator = random.Random(0)

    def transform(batch):
        return [batch[0] * (0.8 + 0.4 * generator.random()), batch[1]]

    return [lambda data, size: DataSpec(DataLoader(data, size), batch_transforms=transform)] * 2


def of_microbatch_transform():
    scale = Scaling(np.random.default_rng(0))

    def transform(batch):
        return [batch[0] * (0.8 + 0.4 * drawn(scale.generator)), batch[1]]

    return [lambda data, size: DataSpec(DataLoader(data, size), microbatch_transforms=transform)] * 2


CASES = {
    "a python collator": partial(of_collator, "python"),
    "a numpy collator": partial(of_collator, "numpy"),
    "a torch collator": partial(of_collator, "torch"),
    "data sets": of_datasets,
    "a module": of_module,
    "a batch sampler": of_batch_sampler,
    "transforms": of_transform,
    "microbatch transforms": of_microbatch_transform,
}


def trained(make, *callbacks):
    (training, validation), (load, evaluate) = digits(), make()
    run = trainer(
        *callbacks,
        train_dataloader=load(training, 64),
        eval_dataloader=evaluate(validation, 100),
        duration="9ba",  # into a second epoch, for what draws once in each
    )
    run.fit()
    return everything(run)


@pytest.mark.parametrize("case", CASES)
def test_a_generator_that_training_shares_is_not_moved_on(tmp_path, case):
    assert trained(CASES[case], ours(tmp_path)) == trained(CASES[case])


class Drawing(Net):
    """Draws in evaluation, too."""

    def __init__(self, width):
        super().__init__(width)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn(x.shape, generator=self.generator))


def test_a_generator_of_the_model_is_not_moved_on(tmp_path):
    def run(*callbacks):
        reproducibility.seed_all(0)
        model = ComposerClassifier(Drawing(48))
        run = trainer(
            *callbacks, model=model, optimizers=torch.optim.AdamW(model.parameters()), duration="6ba"
        )
        run.fit()
        return everything(run)

    assert run(ours(tmp_path)) == run()


class Masking:
    """Masks pixels; its generator is made when it is first used."""

    def __init__(self):
        self.generator, self.masks = None, []

    def __call__(self, items):
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(0)
        images, labels = stacked(items)
        mask = torch.rand(images.shape, generator=self.generator) > 0.3
        self.masks.append(mask.sum().item())
        return [images * mask, labels]


def test_every_candidate_is_measured_on_the_same_masks(tmp_path):
    collate = Masking()
    fit(ours(tmp_path), eval_dataloader=DataLoader(digits()[1], 100, collate_fn=collate), duration="6ba")
    masks = collate.masks[1:]  # as a fit begins, Composer reads one batch
    passes = [tuple(masks[start : start + 3]) for start in range(0, len(masks), 3)]
    assert len(passes) > 2
    assert len(set(passes)) == 1
