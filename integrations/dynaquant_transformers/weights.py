"""The weights that a native checkpoint would hold, as live tensors, and back.

For most models that is the state dict; for a model with adapters (PEFT) the adapters' own weights only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.plugins import spare_unwritable

__all__ = [
    "ADAPTERS",
    "MODEL",
    "OPTIMIZER",
    "adapters_of",
    "are_live",
    "hollow",
    "part_of",
    "put_weights",
    "weights_of",
]

#: Keys of a checkpoint's tree: the whole model, or name -> weights of each adapter.
MODEL, ADAPTERS, OPTIMIZER = "model", "adapters", "optimizer"

#: What `torch.compile` puts into the names of a module's tensors.
COMPILED = "_orig_mod."

#: Names listed in an error before the rest is only counted.
SHOWN = 8


def weights_of(model: nn.Module) -> dict[str, Any]:
    """``{"model": ...}`` or ``{"adapters": {name: ...}}``; the tensors are the model's own.

    Example:
        >>> list(weights_of(nn.Linear(2, 1))["model"])
        ['weight', 'bias']
    """
    inner = _bare(model)
    names = adapters_of(model)
    if names:
        from peft import get_peft_model_state_dict

        return {ADAPTERS: {name: get_peft_model_state_dict(inner, adapter_name=name) for name in names}}
    ignored = set(getattr(inner, "_keys_to_ignore_on_save", None) or ())
    named = {key.replace(COMPILED, ""): value for key, value in model.state_dict().items()}
    return {MODEL: {name: value for name, value in named.items() if name not in ignored}}


def adapters_of(model: nn.Module) -> list[str]:
    """Names of the adapters that a native checkpoint holds; [] for a model saved whole.

    Example:
        >>> adapters_of(nn.Linear(2, 1))
        []
    """
    inner = _bare(model)
    if getattr(inner, "_hf_peft_config_loaded", False):
        return list(inner.active_adapters())
    if not hasattr(inner, "peft_config"):
        return []
    from peft import PeftModel

    return list(inner.peft_config) if isinstance(inner, PeftModel) else []


def part_of(model: nn.Module) -> str:
    """The key under which a checkpoint holds the weights of such a model."""
    return ADAPTERS if adapters_of(model) else MODEL


def are_live(weights: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether every tensor is the model's own memory, so that candidates can be tried in it."""
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return all(_storage(tensor) in own for tensor in _tensors(weights) if tensor.numel())


def hollow(model: nn.Module) -> dict[str, Any]:
    """A state dict with which the model's ``save_pretrained`` writes everything but large weights.

    Adapters look for their keys in it, and some work with their values (AdaLoRA cuts ranks, VB-LoRA takes the
    largest logits), so it holds those; the base's weights and copies of its layers are empty tensors.
    """
    inner = _bare(model)
    if not adapters_of(model):
        return {}
    prefix = getattr(getattr(inner, "base_model", None), "prefix", None) or ""
    empty = torch.empty(0, device="cpu")
    return {name: value if prefix in name else empty for name, value in model.state_dict().items()}


def put_weights(model: nn.Module, tree: Mapping[str, Any]) -> None:
    """Puts stored weights into the model.

    Raises:
        StateMismatchError: names or shapes differ; lists them; the model was not touched.
    """
    live, part = weights_of(model), part_of(model)
    if part not in tree:
        kinds = {MODEL: "a whole model", ADAPTERS: "adapters (PEFT)"}
        found = " and ".join(kinds[key] for key in kinds if key in tree) or "no weights"
        raise StateMismatchError(
            f"the checkpoint holds {found} and the model is {kinds[part]}; build the model as it was built "
            f"when the checkpoint was saved. Nothing was restored."
        )
    problems = list(_differences("", live[part], tree[part]))
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise StateMismatchError(
            f"the checkpoint does not fit the model: {'; '.join(problems[:SHOWN])}{more}. Build the model as "
            f"it was built when the checkpoint was saved; nothing was restored."
        )
    if part == MODEL:
        keys = {key.replace(COMPILED, ""): key for key in model.state_dict()}
        state = {keys[name]: value for name, value in tree[MODEL].items()}
        spare_unwritable(model, state, "the model")
        model.load_state_dict(state, strict=False)
        return
    from peft import set_peft_model_state_dict

    for name, state in tree[ADAPTERS].items():
        set_peft_model_state_dict(_bare(model), dict(state), adapter_name=name)


def _differences(prefix: str, live: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    """One phrase for each name that is on one side only, and for each other shape; in the model's order."""
    yield from (f"{prefix}{name} is not in the checkpoint" for name in live if name not in stored)
    yield from (f"{prefix}{name} is not in the model" for name in stored if name not in live)
    for name in (name for name in live if name in stored):
        here, there = live[name], stored[name]
        if isinstance(here, Mapping):
            yield from _differences(f"{prefix}{name}.", here, there)
        elif isinstance(here, Tensor) and here.shape != there.shape:
            was, now = tuple(there.shape), tuple(here.shape)
            yield f"{prefix}{name} is {was} in the checkpoint and {now} in the model"


def _bare(model: nn.Module) -> Any:
    """The model without what `torch.compile` puts around it."""
    return getattr(model, "_orig_mod", model)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
