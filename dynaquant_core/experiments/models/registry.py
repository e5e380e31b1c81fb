"""The table of models by their name in the YAML file."""

from __future__ import annotations

from torch import nn

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.parts import ResNetModel, TextData, ViTModel
from dynaquant_core.experiments.config.small import (
    AlexNetModel,
    FactorisationModel,
    LeNet5Model,
    MlrModel,
    RatingsData,
)
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.digits import AlexNet, LeNet5, Mlr
from dynaquant_core.experiments.models.factorisation import Factorisation
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.experiments.models.vit import ViT

__all__ = ["build"]

PAIRED = "the experiment's own check pairs models with data"


def build(experiment: Experiment, classes: int) -> nn.Module:
    """A freshly initialised model for ``classes`` targets, from torch's current random state."""
    section, data = experiment.model, experiment.data
    if isinstance(section, ResNetModel):
        return ResNet(classes, widths=section.widths, depths=section.depths)
    if isinstance(section, ViTModel):
        return ViT(
            classes,
            layers=section.layers,
            width=section.width,
            heads=section.heads,
            patch=section.patch,
            dropout=section.dropout,
        )
    if isinstance(section, MlrModel):
        return Mlr(classes)
    if isinstance(section, LeNet5Model):
        return LeNet5(classes)
    if isinstance(section, AlexNetModel):
        return AlexNet(classes, width=section.width, dropout=section.dropout)
    if isinstance(section, FactorisationModel):
        assert isinstance(data, RatingsData), PAIRED
        return Factorisation(data.users, data.items, rank=section.rank)
    assert isinstance(data, TextData), PAIRED
    return CharGPT(
        classes,
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        context=data.context,
        dropout=section.dropout,
    )
