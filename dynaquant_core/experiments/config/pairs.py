"""Which model reads which data, and which metric is of which."""

from __future__ import annotations

from dynaquant_core.experiments.config.language import SentenceData
from dynaquant_core.experiments.config.parts import DataSection, Evaluation, ModelSection, ViTModel
from dynaquant_core.experiments.config.pictures import FolderData

__all__ = ["DATA_OF", "TAGS", "require_metric", "require_pair"]

#: The data that each model reads.
DATA_OF: dict[str, tuple[str, ...]] = {
    "char_gpt": ("text", "bytes"),
    "char_lstm": ("text", "bytes"),
    "resnet": ("cifar",),
    "inception": ("cifar",),
    "vgg": ("cifar",),
    "mobilenet": ("cifar",),
    "vit": ("cifar", "image_folder"),
    "bert": ("masked",),
    "bottleneck": ("image_folder",),
    "minilm": ("sst2", "stsb"),
    "hf": ("tokens", "sst2", "mnli", "stsb"),
    "mlr": ("mnist",),
    "mlp": ("mnist", "points"),
    "lenet5": ("mnist",),
    "alexnet": ("mnist",),
    "factorisation": ("ratings",),
}

#: Names of models and data, which pydantic puts into an error's place.
TAGS = frozenset({*DATA_OF, *(name for names in DATA_OF.values() for name in names)})


def require_pair(model: ModelSection, data: DataSection) -> None:
    """Refuses a model that cannot read the data.

    Raises:
        ValueError: says what it reads.
    """
    names = DATA_OF[model.name]
    if data.name not in names:
        read = " or ".join(map(repr, names))
        raise ValueError(f"model {model.name!r} reads data {read}, not {data.name!r}")
    if isinstance(data, SentenceData) and data.name != "sst2" and data.joined != (model.name == "hf"):
        wanted = str(not data.joined).lower()
        raise ValueError(f"model {model.name!r} reads pairs with joined: {wanted}")
    if isinstance(model, ViTModel) and isinstance(data, FolderData) and data.side % model.patch:
        raise ValueError(f"patch {model.patch} does not divide the {data.side} pixels of an image's side")


def require_metric(evaluate: Evaluation, data: DataSection) -> None:
    """Refuses a metric that the data's targets do not have.

    Raises:
        ValueError: says which they have.
    """
    if data.name == "ratings" and evaluate.metric != "loss":
        raise ValueError(f"data 'ratings' has the metric loss, not {evaluate.metric!r}")
    scores = data.name in {"stsb", "ratings"}
    if evaluate.metric == ("accuracy" if scores else "correlation"):
        known = "loss or correlation" if scores else "loss or accuracy"
        raise ValueError(f"data {data.name!r} has the metric {known}, not {evaluate.metric!r}")
