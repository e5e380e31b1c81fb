"""Where a fine-tuning starts: its pre-trained weights, found or trained, and put into a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.language import HFModel
from dynaquant_core.experiments.config.transfer import Pretrained
from dynaquant_core.experiments.data.dataset import file_digest, locate
from dynaquant_core.experiments.data.registry import fingerprint
from dynaquant_core.experiments.models.pretrained import config_file
from dynaquant_core.experiments.recording import recording_folder, state_path
from dynaquant_core.files import load_file
from dynaquant_core.store.native import read_native
from dynaquant_core.store.store import CheckpointStore

__all__ = [
    "content",
    "decoded_weights",
    "own_content",
    "pretraining",
    "put_weights",
    "read_weights",
    "start_digest",
    "start_path",
]

#: Parts of a model that belong to a task: a fine-tuning may begin with new ones.
HEADS = frozenset({"head", "classifier", "score", "cls", "pooler", "lm_head", "qa_outputs"})

#: Keys that files of weights wrap them in, and prefixes that wrappers put before names.
WRAPPED, PREFIXES = ("state_dict", "model"), ("", "module.", "model.")

#: What files of BERT's first years call a norm's parameters.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

#: Names listed in an error before the rest is only counted.
SHOWN = 4


def _section(experiment: Experiment) -> Pretrained:
    assert experiment.pretrained is not None, "the experiment's own check asks a transfer for it"
    return experiment.pretrained


def pretraining(experiment: Experiment) -> Experiment:
    """The pre-trained model as an experiment: its training, or one step where it comes from a file.

    How it is compressed (method, threshold) is as in the transfer.

    Raises:
        ConfigError: its parts do not go together.
    """
    section, settings = _section(experiment), experiment.as_dict()
    settings |= {"kind": "train", "pretrained": None, "system": None, "seed": section.seed}
    settings |= {
        "steps": section.steps or 1,
        "checkpoint_every": section.checkpoint_every or section.steps or 1,
    }
    own = section.model_dump(mode="json")
    settings |= {name: own[name] for name in ("data", "optimizer", "evaluate") if own[name] is not None}
    return validate(settings, f"{experiment.name}: pretrained")


def start_path(experiment: Experiment) -> Path:
    """Where the pre-trained weights lie, or will lie once they are trained.

    Raises:
        ExperimentError: their file is missing.
    """
    source = _section(experiment).source
    if source is not None:
        return locate(source)
    training = pretraining(experiment)
    folder = recording_folder(training, own_content(training))
    return state_path(folder, training.steps)


def start_digest(experiment: Experiment, start: Path) -> str | None:
    """Of the weights that a recorded pre-training ended in: made anew, it may end in others.

    Args:
        experiment: a transfer.
        start: where its weights lie (`start_path`).

    Returns:
        None of weights from a file, of which `content` tells, and where nothing is recorded yet.
    """
    if _section(experiment).source is not None:
        return None
    ended = events.find(events.read(start.parent.parent / "events.jsonl"), "final")
    return str(ended[-1]["weights_digest"]) if ended else None


def own_content(experiment: Experiment) -> str:
    """Hex digest of what a training reads: its data, and the config that a model `hf` is made from.

    Raises:
        ExperimentError: something is missing or unreadable.
    """
    data = fingerprint(experiment.data)
    if not isinstance(experiment.model, HFModel):  # all of its shape is in the settings
        return data
    made_from = file_digest(config_file(locate(experiment.model.path)))
    return hashlib.blake2b(f"{data} {made_from}".encode(), digest_size=16).hexdigest()


def content(experiment: Experiment, begun: Path | None = None) -> str:
    """Hex digest of what a run reads: `own_content`, and of a transfer the weights that it starts from.

    Of weights that are trained, their settings count; what came of those `start_digest` tells.

    Args:
        experiment: one run.
        begun: start of a run that has begun (`start_path`, as it was then): gives the digest that it had, if
            it read the same.  Another torch records the same pre-training elsewhere.

    Raises:
        ExperimentError: something is missing or unreadable.
    """
    own = own_content(experiment)
    if experiment.pretrained is None:
        return own
    training = pretraining(experiment)
    judged = own_content(training)
    if experiment.pretrained.source is None:
        recording = recording_folder(training, judged) if begun is None else begun.parent.parent
        start = recording.name
    else:
        start = file_digest(start_path(experiment))
    return hashlib.blake2b(f"{own} {judged} {start}".encode(), digest_size=16).hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Name -> tensor from a file of weights, a recorded state, or the newest checkpoint of a store's folder.

    Raises:
        ExperimentError: it holds something else.
        DynaQuantError: it is missing, damaged, or would have to run code to be read.
    """
    if path.is_dir():
        found: Any = CheckpointStore(path).load()
    elif path.suffix == ".dq":
        found = load_file(path)
        found = found.get("state") if isinstance(found, Mapping) else found
    else:
        found = read_native(path)
    for key in WRAPPED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ExperimentError(f"pretrained: {path} holds something else than tensors by name.")
    return dict(found)


def decoded_weights(store: Path, source: Path) -> dict[str, Tensor]:
    """What a reader of a checkpoint gets of the weights that were compressed: those which their source has.

    A part that the compressed model had and its source had not, as a new head, is nobody's pre-training.

    Args:
        store: folder of the checkpoint, in the names of the model that was compressed.
        source: of the weights, as `read_weights` takes it.

    Raises:
        DynaQuantError: see `read_weights`.
    """
    decoded = read_weights(store)
    return {name: decoded[name] for name in _renamed(read_weights(source), decoded)}


def put_weights(
    model: nn.Module, weights: Mapping[str, Tensor], where: str, *, partial: bool = False
) -> None:
    """Copies pre-trained weights into a model, whose heads (`HEADS`) may be new and stay as they are.

    Prefixes that wrappers put before names do not matter; tensors that the model does not have are left out.

    Args:
        model: to be filled; nothing is touched where the weights do not fit.
        weights: name -> tensor.
        where: they come from, for the message.
        partial: whether any tensor of the model may be missing, not only heads.

    Raises:
        ExperimentError: a tensor of the model is missing, or has another shape; names it.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 1))
        >>> put_weights(model, {"module.weight": torch.ones(1, 2), "module.bias": torch.ones(1)}, "here")
        >>> model[0].bias.tolist()
        [1.0]
    """
    own = model.state_dict()
    found = _renamed(weights, own)
    needed = [] if partial else [name for name in own if not HEADS.intersection(name.split("."))]
    missing = [name for name in needed if name not in found]
    others = [
        f"{name} is {list(found[name].shape)}, expected {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in found and found[name].shape != tensor.shape
    ]
    problems = [f"{name} is missing" for name in missing] + others
    if problems or not found:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        said = "; ".join(problems[:SHOWN]) or "no name is the model's"
        raise ExperimentError(
            f"pretrained: {where} does not fit the model ({said}{more}); make model as it was pre-trained."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            if name in found:
                tensor.copy_(found[name])


def _renamed(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the prefixes with which most names are the model's."""
    for was, now in OLD_NAMES.items():
        weights = {name.replace(was, now): value for name, value in weights.items()}
    added = ("", *sorted({f"{name.split('.')[0]}." for name in own}))
    best: dict[str, Tensor] = {}
    for old in PREFIXES:
        stripped = {name[len(old) :]: value for name, value in weights.items() if name.startswith(old)}
        for new in added:
            named = {f"{new}{name}": value for name, value in stripped.items() if f"{new}{name}" in own}
            best = max(best, named, key=len)
    return best
