"""The models that ship, and what a training step does with them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.parts import OptimizerSection
from dynaquant_core.experiments.models import build
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.optimizers import learning_rate
from dynaquant_core.experiments.trainer import Trainer


@pytest.mark.parametrize(
    ("config", "classes", "low", "high"),
    [
        ("gpt_shakespeare", 65, 3.1e6, 3.3e6),
        ("resnet_cifar", 10, 1.1e6, 1.3e6),
        ("vit_cifar", 10, 0.9e6, 1.1e6),
        ("quickstart", 96, 0.4e6, 0.8e6),
        ("ablation/bins_resnet", 10, 0.25e6, 0.35e6),
        ("ablation/bins_vgg", 10, 0.35e6, 0.45e6),
        ("ablation/bins_mobilenet", 10, 0.25e6, 0.35e6),
        ("ablation/bins_vit", 10, 0.9e6, 1.1e6),
        ("ablation/bins_gpt", 65, 0.9e6, 1.1e6),
    ],
)
def test_shipped_models_have_the_sizes_they_promise(
    config: str, classes: int, low: float, high: float
) -> None:
    model = build(load_experiment(config), classes)
    assert low < sum(parameter.numel() for parameter in model.parameters()) < high


def test_most_of_the_resnet_sits_in_its_late_stages() -> None:
    sizes = {name: p.numel() for name, p in build(load_experiment("resnet_cifar"), 10).named_parameters()}
    late = sum(size for name, size in sizes.items() if name.startswith(("blocks.3", "blocks.4")))
    assert late > 0.9 * sum(sizes.values())


def test_vgg_and_mobilenet_are_made_of_what_they_are_known_for() -> None:
    images = torch.randn(3, 3, 32, 32)
    vgg, mobile = (build(load_experiment(f"ablation/bins_{name}"), 10) for name in ("vgg", "mobilenet"))
    for model in (vgg, mobile):
        logits = model(images)
        assert logits.shape == (3, 10)
        logits.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    convolutions = [layer for layer in vgg.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [16, 32, 64, 64, 128, 128]
    assert vgg.hidden[1].weight.numel() > 0.3 * sum(p.numel() for p in vgg.parameters())
    depthwise = [
        layer for layer in mobile.modules() if isinstance(layer, torch.nn.Conv2d) and layer.groups > 1
    ]
    assert len(depthwise) == 7
    assert all(layer.groups == layer.in_channels == layer.out_channels for layer in depthwise)
    assert sum(block.joins for block in mobile.blocks) == 4


def test_a_mobilenet_and_a_vgg_need_a_depth_for_each_width() -> None:
    for name in ("vgg", "mobilenet"):
        with pytest.raises(ConfigError, match="2 depths for 4 widths; give one for each"):
            load_experiment(f"ablation/bins_{name}", ["model.depths=[1, 2]"])
        experiment = load_experiment(f"ablation/bins_{name}", ["model.depths=1", "model.widths=[8, 16]"])
        assert build(experiment, 7)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_a_character_sees_only_those_before_it() -> None:
    torch.manual_seed(0)
    model = CharGPT(20, layers=2, width=32, heads=4, context=12).eval()
    tokens = torch.randint(0, 20, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % 20
    with torch.no_grad():
        one, other = model(tokens), model(changed)
    assert torch.allclose(one[0, :8], other[0, :8], atol=1e-6)
    assert not torch.allclose(one[0, 8:], other[0, 8:], atol=1e-3)
    assert model.head.weight is model.wte.weight


def test_the_learning_rate_warms_up_and_comes_down() -> None:
    section = OptimizerSection(lr=0.1, min_lr=0.01, warmup=5)
    rates = [learning_rate(section, step, 50) for step in range(50)]
    assert rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert all(a >= b for a, b in pairwise(rates[5:]))
    assert 0.01 < rates[-1] < 0.011


def test_training_lowers_the_loss_and_evaluation_touches_nothing(
    workplace: Any, tiny: dict[str, Any]
) -> None:
    trainer = Trainer(validate(tiny | {"model": {**tiny["model"], "dropout": 0.2}}, "tiny"))
    before = sum(trainer.quality(trainer.data.heldout))
    random = torch.get_rng_state()
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.quality(trainer.data.search)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(weights[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert all(module.training for module in trainer.model.modules())
    for _ in range(30):
        trainer.advance()
    assert sum(trainer.quality(trainer.data.heldout)) < 0.9 * before


def test_two_trainers_of_one_seed_are_the_same_run(workplace: Any, tiny: dict[str, Any]) -> None:
    losses = [
        [trainer.advance() for _ in range(3)] for trainer in (Trainer(validate(tiny, "a")) for _ in "ab")
    ]
    assert losses[0] == losses[1]
    other = Trainer(validate(tiny | {"seed": 1}, "b"))
    assert other.advance() != losses[0][0]


def test_a_loss_that_is_not_finite_stops_the_run(workplace: Any, tiny: dict[str, Any]) -> None:
    trainer = Trainer(validate(tiny | {"optimizer": {"name": "sgd", "lr": 1e30}}, "tiny"))
    with pytest.raises(ExperimentError, match=r"training loss is (nan|inf) at step \d+; lower optimizer.lr"):
        [trainer.advance() for _ in range(5)]
