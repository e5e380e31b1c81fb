"""The sections of small models, those of arXiv 2009.13003 among them, and of the data that they read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dynaquant_core.experiments.config.section import Count, Number, Section, Share

__all__ = [
    "AlexNetModel",
    "CharLSTMModel",
    "DigitData",
    "FactorisationModel",
    "InceptionModel",
    "LeNet5Model",
    "MlpModel",
    "MlrModel",
    "PointData",
    "RatingsData",
]


class MlrModel(Section):
    """``model: {name: mlr}``: multinomial logistic regression."""

    name: Literal["mlr"]


class LeNet5Model(Section):
    """``model: {name: lenet5}``."""

    name: Literal["lenet5"]


class AlexNetModel(Section):
    """``model: {name: alexnet}``: for small images; ``width`` channels in its first layer (published: 64)."""

    name: Literal["alexnet"]
    width: Count = 8
    dropout: Share = 0.0


class MlpModel(Section):
    """``model: {name: mlp}``: three layers, the first of ``width``, the second of half of it."""

    name: Literal["mlp"]
    width: Count = 512


class CharLSTMModel(Section):
    """``model: {name: char_lstm}``: an LSTM over characters; the vocabulary comes from the data."""

    name: Literal["char_lstm"]
    width: Count = 128
    layers: Count = 1


class InceptionModel(Section):
    """``model: {name: inception}``: three blocks of four branches; ``width`` channels in its first layer."""

    name: Literal["inception"]
    width: Annotated[int, Field(ge=2, multiple_of=2)] = 8


class FactorisationModel(Section):
    """``model: {name: factorisation}``: a rating is the product of two vectors of ``rank`` numbers."""

    name: Literal["factorisation"]
    rank: Count = 8


class DigitData(Section):
    """``data: {name: mnist}``: grey 28x28 images in an npz (Fashion-MNIST has the same form).

    Args:
        source: a path, tried as given, then under the data root.
        batch: images a training step.
        train_images: use only the first so many training images.
        search_images, heldout_images: sizes of the two fixed evaluation sets, cut from the test split.
    """

    name: Literal["mnist"]
    source: str = "mnist/mnist.npz"
    batch: Count = 64
    train_images: Count | None = None
    search_images: Count = 1000
    heldout_images: Count = 2000


class PointData(Section):
    """``data: {name: points}``: made here, from a stated distribution.

    A point has standard normal coordinates.  Each class has a direction of as many normal numbers, so that a
    point's score for it, their product over sqrt(features), has variance 1; the label is the class of the
    highest score after normal noise.

    Args:
        source: ``drawn``, the only one there is.
        features: coordinates of a point.
        classes: labels there are, 2 at least.
        noise: standard deviation of what is added to scores.
        draw: seed of all this; the run's seed only decides how it is trained on.
        points: to train on.
        batch: points a training step.
        search_points, heldout_points: sizes of the two fixed evaluation sets, of other points.
    """

    name: Literal["points"]
    source: Literal["drawn"] = "drawn"
    features: Count = 64
    classes: Annotated[int, Field(ge=2)] = 10
    noise: Number = 0.25
    draw: Annotated[int, Field(ge=0)] = 0
    points: Count = 4000
    batch: Count = 64
    search_points: Count = 1000
    heldout_points: Count = 2000

    @model_validator(mode="after")
    def _enough_points(self) -> PointData:
        if self.batch > self.points:
            raise ValueError(f"{self.points} points to train on are less than a batch of {self.batch}")
        return self


class RatingsData(Section):
    """``data: {name: ratings}``: made here, from a stated distribution; no real ratings are read.

    A user and an item have a vector of ``rank`` standard normal numbers each; the rating of a pair is their
    product over sqrt(rank), so that it has variance 1, and normal noise.

    Args:
        source: ``drawn``, the only one there is.
        users, items: how many.
        rank: of the matrix without its noise.
        noise: standard deviation of what is added.
        density: share of the pairs that were rated, drawn evenly; above 0.
        draw: seed of all this; the run's seed only decides how it is trained on.
        batch: ratings a training step.
        search_ratings: the fixed set that the loss is measured on: of those that are trained on.
        heldout_ratings: taken out before training.
    """

    name: Literal["ratings"]
    source: Literal["drawn"] = "drawn"
    users: Count = 1000
    items: Count = 500
    rank: Count = 8
    noise: Number = 0.1
    density: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    draw: Annotated[int, Field(ge=0)] = 0
    batch: Count = 4096
    search_ratings: Count = 10_000
    heldout_ratings: Count = 5000

    @model_validator(mode="after")
    def _enough_ratings(self) -> RatingsData:
        most = max(self.batch, self.search_ratings)
        if self.ratings - self.heldout_ratings < most:
            raise ValueError(
                f"{self.users} users, {self.items} items and density {self.density} make {self.ratings} "
                f"ratings; {most} to train on and {self.heldout_ratings} held out are more"
            )
        return self

    @property
    def ratings(self) -> int:
        """How many there are."""
        return round(self.users * self.items * self.density)
