"""Which keys of a dictionary say that what lies under them is an optimizer's.

"optimizer" says it whatever lies there.  "opt", "D_opt" or "adam" say it too, but a part of a model may be
called so as well; that holds weights under the names that modules give them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from dynaquant_core.state.places import MOMENTS

__all__ = ["optimizer_keys"]

#: "optimizer", "optimizer_states", "generator_optimizer", "optim".
CERTAIN: Final = re.compile(r"(.*_)?optim(izer)?s?([A-Z0-9_].*)?")

#: What one word of a key says, in small letters.
WORDS: Final = frozenset({
    "opt", "opts", "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "adan",
    "amsgrad", "asgd", "lamb", "lars", "lbfgs", "lion", "muon", "nadam", "prodigy", "radam", "rmsprop",
    "rprop", "sgd", "shampoo", "soap", "sophia",
})  # fmt: skip
#: Words of a key: "optG", "D_opt", "AdamW", "opt2".
WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

#: Names that modules give their tensors.
OF_MODULES: Final = re.compile(
    r"(.*_)?(weight|bias)(_.*)?|kernel|embedding|running_mean|running_var|num_batches_tracked"
)
#: Names under which an optimizer holds something of every weight, by the weights' names.
KINDS: Final = MOMENTS.union(
    ("m", "v", "mu", "nu", "state", "param_groups", "trace", "momentum", "momenta", "velocity"),
    ("exp_avgs", "exp_avg_sqs", "master", "masters"),
)
#: Levels that are looked into.
DEEP: Final = 8

Levels = tuple[str, ...]


def optimizer_keys(held: Mapping[Any, object], *, at_root: bool) -> frozenset[str]:
    """The keys under which an optimizer's state lies, by what they are called, whatever its form.

    In a model's state names of modules have dots; at the root a state that was flattened has them too.

    Example:
        >>> own, layer = {"v": torch.ones(2)}, {"weight": torch.ones(2)}
        >>> state = {"optimizer": own, "optim.weight": own, "D_opt": own, "adam_layer": layer, "model": own}
        >>> sorted(optimizer_keys(state, at_root=False))
        ['D_opt', 'optimizer']
    """
    found: set[str] = set()
    likely: dict[str, list[str]] = {}
    for key in held:
        if not isinstance(key, str):
            continue
        called = key.partition(".")[0] if at_root else key
        if "." in called:
            continue
        if CERTAIN.fullmatch(called):
            found.add(key)
        elif not WORDS.isdisjoint(word.lower() for word in WORD.findall(called)):
            likely.setdefault(called, []).append(key)
    for keys in likely.values():
        tensors = (levels for key in keys for levels in _tensors(held[key], tuple(key.split(".")[1:])))
        if not any(_is_of_module(levels) for levels in tensors):
            found.update(keys)
    return frozenset(found)


def _tensors(value: object, levels: Levels) -> Iterator[Levels]:
    """The levels, below a key, of every tensor in it; dots within a key are levels too."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield levels
    elif isinstance(value, dict) and len(levels) < DEEP:
        for key, inner in value.items():
            yield from _tensors(inner, (*levels, *str(key).split(".")))
    elif isinstance(value, (list, tuple)) and len(levels) < DEEP:
        for number, inner in enumerate(value):
            yield from _tensors(inner, (*levels, str(number)))


def _is_of_module(levels: Levels) -> bool:
    """Whether a tensor is called as a module's weight is, and lies under nothing that optimizers hold."""
    return bool(levels) and OF_MODULES.fullmatch(levels[-1]) is not None and KINDS.isdisjoint(levels[:-1])
