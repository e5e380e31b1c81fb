"""From what a reader holds to the user's state: as a new tree, or into the tensors that exist already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.config import require
from dynaquant_core.errors import ConfigError, CorruptFileError, StateMismatchError
from dynaquant_core.state import TensorSpec, flatten, read_only, unflatten
from dynaquant_core.store.chain import Chain, Link
from dynaquant_core.store.partial import data_leaves, prune
from dynaquant_core.store.parts import HeldPart

__all__ = ["fill", "is_host", "part_of_state", "require_fit", "whole_state"]

#: Differences that an error names before it only counts them.
NAMED = 5


@plainly
def whole_state(link: Link, held: Mapping[str, HeldPart], device: str | torch.device | None) -> Any:
    """The state of a checkpoint, its tensors on ``device`` (None: the CPU).

    Raises:
        CorruptFileError: the file's tree and its tensors do not belong together.
        ConfigError: there is no such device.
    """
    tensors = _tensors(held, _device(device))
    return unflatten(link.index.skeleton, _Lookup(link, tensors))


@plainly
def part_of_state(chain: Chain, names: str | Iterable[str], device: str | torch.device | None) -> Any:
    """The part of a state that ``names`` cover; everything else is neither decoded nor returned.

    Args:
        chain: of the checkpoint.
        names: dotted names from the root, of tensors or of what they lie in; fnmatch patterns too.
        device: where its tensors go; None: the CPU.

    Raises:
        StateMismatchError: nothing is covered.
    """
    patterns = [names] if isinstance(names, str) else [str(name) for name in names]
    skeleton, wanted = prune(chain.last.index.skeleton, patterns)
    if not wanted:
        known = [tensor.name for tensor in chain.last.index.tensors]
        some = ", ".join(map(repr, known[:NAMED]))
        raise StateMismatchError(
            f"No tensor of step {chain.last.entry.step} is covered by {patterns!r:.200}; "
            f"names count from the root, as in {some or 'a state with tensors'}."
        )
    tensors = _tensors(chain.hold(wanted, whole=is_host(device)), _device(device))
    order = iter(wanted)  # the smaller tree's own names may differ
    lookup = _Lookup(chain.last, tensors)
    return unflatten(skeleton, lambda _: lookup(next(order)))


class _Lookup:
    """Gives tensors by name; what the index announces must be what was decoded."""

    def __init__(self, link: Link, tensors: Mapping[str, Tensor]) -> None:
        self._where = link.entry.path.name
        self._specs = {tensor.name: tensor.spec for tensor in link.index.tensors}
        self._tensors = tensors

    def __call__(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None or TensorSpec.of(tensor) != self._specs.get(name):
            raise CorruptFileError(
                f"{self._where}: the tensor {name!r} is missing or is not what the index says."
            )
        return tensor


def _tensors(held: Mapping[str, HeldPart], device: torch.device) -> dict[str, Tensor]:
    if device.type == "cpu":
        return {name: tensor for part in held.values() for name, tensor in part.reference.state().items()}
    return {name: tensor.to(device) for part in held.values() for name, tensor in part.reference.items()}


def is_host(device: str | torch.device | None) -> bool:
    """Whether tensors that go to a device lie in host memory; raises ConfigError where there is none such."""
    return _device(device).type == "cpu"


def _device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        raise ConfigError(f"device {device!r} cannot be used: {reason}.") from error
    require(found.type != "meta", f"device {device!r} cannot be used: it holds no values.")
    return found


def require_fit(link: Link, tree: Any) -> None:
    """Checks that a tree has the checkpoint's tensors.

    Raises:
        StateMismatchError: names, shapes or dtypes differ, or a tensor cannot be written to; names them.
    """
    live = _live(tree)
    data = data_leaves(link.index.skeleton)
    stored = {tensor.name: tensor.spec for tensor in link.index.tensors if tensor.name not in data}
    problems = [f"{name!r} is stored but not in the tree" for name in stored if name not in live]
    problems += [f"{name!r} is in the tree but not stored" for name in live if name not in stored]
    problems += [f"{name!r} lies in read-only memory, and cannot be written to" for name in read_only(live)]
    for name in stored.keys() & live.keys():
        have = TensorSpec.of(live[name])
        if have != stored[name]:
            problems.append(
                f"{name!r} is stored as {_described(stored[name])}, the tree has {_described(have)}"
            )
        if live[name].numel() and any(
            size > 1 and stride == 0 for size, stride in zip(have.shape, live[name].stride(), strict=True)
        ):
            problems.append(f"{name!r} is expanded in the tree, and cannot be written to; clone it")
    if problems:
        more = f" and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
        raise StateMismatchError(
            f"The checkpoint of step {link.entry.step} does not fit the tree: "
            f"{'; '.join(sorted(problems)[:NAMED])}{more}."
        )


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _live(tree: Any) -> dict[str, Tensor]:
    """The tree's own tensors and arrays by name; writing into them writes into the tree."""
    return {leaf.name: leaf.tensor for leaf in flatten(tree).leaves if leaf.source != "data"}


@plainly
def fill(tree: Any, link: Link, held: Mapping[str, HeldPart]) -> None:
    """Writes a checkpoint into ``tree``: tensors and arrays in place, one at a time; other values replaced.

    The tree was checked by `require_fit`.  Plain values in a tuple cannot be replaced and stay as they are.
    """
    live = _live(tree)
    data: dict[str, Tensor] = {}
    with torch.no_grad():
        for part in held.values():
            for name, tensor in part.reference.items():
                if name in live:
                    live[name].copy_(tensor)
                else:
                    data[name] = tensor
    _graft(tree, unflatten(link.index.skeleton, (live | data).__getitem__))


def _graft(tree: Any, source: Any) -> None:
    """Replaces what was not written in place, in the dictionaries and lists of ``tree``."""
    for slot in _slots(tree, source):
        mine, theirs = tree[slot], source[slot]
        if type(mine) is type(theirs) and _has_places(mine):
            _graft(mine, theirs)
        elif not isinstance(tree, tuple) and not _is_written(mine, theirs):
            tree[slot] = theirs
    if isinstance(tree, list):
        tree[len(source) :] = source[len(tree) :]
    elif isinstance(tree, dict):
        tree.update({key: value for key, value in source.items() if key not in tree})


def _slots(tree: Any, source: Any) -> Iterable[Any]:
    if isinstance(tree, dict):
        return [key for key in tree if key in source]
    return range(min(len(tree), len(source))) if isinstance(tree, (list, tuple)) else ()


def _has_places(value: Any) -> bool:
    """Whether something inside can be written to; a tuple of plain values is a value itself."""
    return isinstance(value, (dict, list)) or (isinstance(value, tuple) and bool(flatten(value).leaves))


def _is_written(mine: Any, theirs: Any) -> bool:
    """Whether the value was written in place: a tensor, or an array on the same memory."""
    if isinstance(mine, np.ndarray):
        return isinstance(theirs, np.ndarray) and np.may_share_memory(mine, theirs)
    return isinstance(mine, Tensor)
