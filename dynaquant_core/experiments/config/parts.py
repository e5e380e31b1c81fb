"""The sections of an experiment: model, data, optimizer, evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dynaquant_core.experiments.config.language import (
    BertModel,
    ByteData,
    HFModel,
    MaskedData,
    MiniLMModel,
    SentenceData,
    TokenData,
)
from dynaquant_core.experiments.config.pictures import BottleneckModel, FolderData
from dynaquant_core.experiments.config.section import (
    CorpusSection,
    Count,
    Number,
    Positive,
    Section,
    Share,
    TransformerSize,
    Whole,
)
from dynaquant_core.experiments.config.small import (
    AlexNetModel,
    CharLSTMModel,
    DigitData,
    FactorisationModel,
    InceptionModel,
    LeNet5Model,
    MlpModel,
    MlrModel,
    PointData,
    RatingsData,
)

__all__ = [
    "CharGPTModel",
    "DataSection",
    "Evaluation",
    "ImageData",
    "MobileNetModel",
    "ModelSection",
    "OptimizerSection",
    "ResNetModel",
    "TextData",
    "VGGModel",
    "ViTModel",
]

#: Pixels on a side of an image data set's images.
SIDE = 32


class CharGPTModel(TransformerSize):
    """``model: {name: char_gpt}``; vocabulary and context come from the data."""

    name: Literal["char_gpt"]
    layers: Count = 4
    width: Count = 256


class Stages(Section):
    """What convolutional networks have in common: channels of each stage, layers of each (or of all)."""

    widths: list[Count] = Field(min_length=1)
    depths: Count | list[Count] = 1

    @model_validator(mode="after")
    def _a_depth_for_each_width(self) -> Stages:
        if isinstance(self.depths, list) and len(self.depths) != len(self.widths):
            raise ValueError(f"{len(self.depths)} depths for {len(self.widths)} widths; give one for each")
        return self

    @property
    def counts(self) -> list[int]:
        """Layers of each stage."""
        return self.depths if isinstance(self.depths, list) else [self.depths] * len(self.widths)


class ResNetModel(Stages):
    """``model: {name: resnet}``: channels of each stage, basic blocks of each (one number serves all)."""

    name: Literal["resnet"]
    widths: list[Count] = Field(default=[16, 32, 64, 128, 256], min_length=1)


class VGGModel(Stages):
    """``model: {name: vgg}``: channels of each stage, convolutions in each, width of the hidden layer."""

    name: Literal["vgg"]
    widths: list[Count] = Field(default=[16, 32, 64, 128], min_length=1, max_length=5)
    depths: Count | list[Count] = Field(default=[1, 1, 2, 2])
    hidden: Count = 256


class MobileNetModel(Stages):
    """``model: {name: mobilenet}``: channels of each stage, inverted residuals in each, their expansion."""

    name: Literal["mobilenet"]
    widths: list[Count] = Field(default=[12, 24, 48, 96], min_length=1)
    depths: Count | list[Count] = Field(default=[1, 2, 2, 2])
    expand: Count = 4


class ViTModel(TransformerSize):
    """``model: {name: vit}``: an encoder over square patches of so many pixels on a side."""

    name: Literal["vit"]
    layers: Count = 5
    width: Count = 128
    patch: Count = 4

    @model_validator(mode="after")
    def _patches_divide_the_side(self) -> ViTModel:
        if SIDE % self.patch:
            raise ValueError(f"patch {self.patch} does not divide the {SIDE} pixels of an image's side")
        return self


class TextData(CorpusSection):
    """``data: {name: text}``: characters of a file, of a folder's text files, or of the standard library.

    Args:
        source, max_bytes, batch, context: see `CorpusSection`; symbols are characters.
        search_tokens, heldout_tokens: predicted characters in each of the two fixed evaluation sets.
    """

    name: Literal["text"]
    search_tokens: Count = 32_768
    heldout_tokens: Count = 32_768


class ImageData(Section):
    """``data: {name: cifar}``: an npz of raw (``x_train`` ...) or JPEG-coded (``train_jpeg`` ...) images.

    Args:
        source: a path, tried as given, then under the data root.
        batch: images a training step.
        augment: random flips, and crops after padding by 4, in training.
        train_images: use only the first so many training images.
        search_images, heldout_images: sizes of the two fixed evaluation sets, cut from the test split.
    """

    name: Literal["cifar"]
    source: str = "cifar10/cifar10_jpeg.npz"
    batch: Count = 64
    augment: bool = True
    train_images: Count | None = None
    search_images: Count = 2000
    heldout_images: Count = 5000


class OptimizerSection(Section):
    """The optimizer and its learning-rate schedule.

    Args:
        name: ``adamw`` or ``sgd``.
        lr: the highest learning rate; ``min_lr``: where the cosine ends.
        schedule: ``cosine`` or ``constant``, after ``warmup`` linear steps.
        momentum, nesterov: SGD only.
        betas: AdamW only.
        clip: gradient norm, none by default.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    lr: Positive = 1e-3
    min_lr: Number = 0.0
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: Whole = 0
    weight_decay: Number = 0.0
    momentum: Share = 0.0
    nesterov: bool = False
    betas: list[Share] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    clip: Positive | None = None

    @model_validator(mode="after")
    def _every_key_is_used(self) -> OptimizerSection:
        for key in ("momentum", "nesterov") if self.name == "adamw" else ("betas",):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"{self.name} has no {key}, so it would change nothing; drop it, or vary the optimizer "
                    "as a whole"
                )
        if self.schedule == "constant" and self.min_lr:
            raise ValueError(
                f"min_lr: {self.min_lr:g} is where a cosine ends, so with schedule: constant it would change "
                f"nothing; drop it, or vary the optimizer as a whole"
            )
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr: {self.min_lr:g} is above lr: {self.lr:g}, and the cosine ends there")
        return self

    @model_validator(mode="after")
    def _nesterov_has_a_momentum(self) -> OptimizerSection:
        if self.name == "sgd" and self.nesterov and not self.momentum:
            raise ValueError("nesterov: true needs a momentum above 0, as momentum: 0.9")
        return self


class Evaluation(Section):
    """What quality is: ``loss`` (lower is better) or ``accuracy`` or ``correlation``.

    The loss of scores is the squared error; only they have a correlation, the mean of Pearson's and
    Spearman's.  ``batch``: items an evaluation batch.
    """

    metric: Literal["loss", "accuracy", "correlation"] = "loss"
    batch: Count = 64

    @property
    def mode(self) -> Literal["min", "max"]:
        """Which way is better."""
        return "min" if self.metric == "loss" else "max"


LanguageModel = CharGPTModel | CharLSTMModel | BertModel | MiniLMModel | HFModel
PictureModel = ResNetModel | InceptionModel | BottleneckModel | ViTModel | VGGModel | MobileNetModel
SmallModel = MlrModel | MlpModel | LeNet5Model | AlexNetModel | FactorisationModel
LanguageData = TextData | MaskedData | ByteData | SentenceData | TokenData
OtherData = ImageData | FolderData | DigitData | PointData | RatingsData

ModelSection = Annotated[LanguageModel | PictureModel | SmallModel, Field(discriminator="name")]
DataSection = Annotated[LanguageData | OtherData, Field(discriminator="name")]
