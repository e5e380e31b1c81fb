"""One state, one file: compressed with a fixed configuration, or with the smallest that keeps a promise."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from dynaquant_core.config import require, require_threshold
from dynaquant_core.errors import EvaluationError
from dynaquant_core.methods.base import Draft, Method
from dynaquant_core.search.manager import Decision, Manager
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Quality
from dynaquant_core.state import flatten, unflatten
from dynaquant_core.store.disk import followed, path_from
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.saving import Saving
from dynaquant_core.store.single import begin_file, read_file

__all__ = ["load_file", "save_file"]


def save_file(
    state: Any,
    path: str | os.PathLike[str],
    *,
    config: Any = None,
    threshold: float | None = None,
    evaluate: Callable[[Any], Any] | None = None,
    mode: Literal["min", "max"] = "min",
    method: str | Mapping[str, Any] | Method | None = None,
    moments: str = "8bit",
    exact: str | Sequence[str] = (),
    gradients: Mapping[str, Tensor] | None = None,
    model: Any = None,
) -> CheckpointInfo:
    """Saves a state as one self-contained file, which replaces an existing one whole or not at all.

    It knows of no file before it: under "lattice" what was loaded from one takes noise anew, which adds up
    from file to file (docs/restoring.md); a `CheckpointStore` that is resumed leaves what is still as it is.

    Args:
        state: a tree of tensors and plain objects.
        path: of the file; where it is a symbolic link, the file that this points to is written.
        config: one point of a method's search space, which picks its method: a `Config` "dynaquant", a
            `LatticeConfig` "lattice"; None: the method's careful default.
        threshold: allowed relative degradation, a share (0.01 = 1%); the smallest configuration that keeps it
            is searched for.  Needs ``evaluate`` and excludes ``config``.
        evaluate: takes a state like ``state`` and returns a number, or one number a batch; it must not
            change what it is given.
        mode: whether that number is to be minimised ("min") or maximised ("max").
        method: name, mapping or method object; None: the project's default, "lattice".
        moments: policy for optimizer moments, "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns of tensors kept bit for bit.
        gradients: EMA of the gradient by parameter name, for sensitivity.
        model: a module, or name -> module: says which tensors are buffers, which stay exact, and layer types.

    Raises:
        ConfigError: arguments that exclude or lack one another, or are ill-typed or out of range.
        EvaluationError: ``evaluate`` raised, or its value for ``state`` itself is not finite.
        UnsupportedStateError: the tree holds an object that a file cannot hold.
        UnsafePathError: the path names no file, or something else than a file stands there.
        StorageError: the system refused; an existing file is as before.

    Example:
        >>> import torch
        >>> info = save_file({"weight": torch.linspace(-1, 1, 4096).reshape(64, 64)}, "model.dq")
        >>> info.ratio > 4, load_file("model.dq")["weight"].shape
        (True, torch.Size([64, 64]))
    """
    require(
        (threshold is None) == (evaluate is None),
        "save_file: give threshold and evaluate together, or neither.",
    )
    require(
        config is None or threshold is None,
        "save_file: config fixes what threshold searches for; give one of them.",
    )
    if threshold is not None:
        require_threshold("save_file", threshold)
    saving = begin_file(
        path_from("save_file: path", path),
        state,
        config=config,
        method=method,
        moments=moments,
        exact=exact,
        gradients=gradients,
        model=model,
    )
    if threshold is None or evaluate is None:
        return saving.seal(saving.draft(config)).write()
    reference, decision = _search(saving, state, threshold, evaluate, mode)
    return saving.seal(decision.draft, decision.report(reference)).write()


def load_file(path: str | os.PathLike[str]) -> Any:
    """Loads a file written by `save_file`, or a key checkpoint of a store; tensors come to the CPU.

    Raises:
        ConfigError: ``path`` is no path.
        CorruptFileError: the file is damaged; VersionError: it is too new.
        MissingBaseError: it is a delta, which only its store can read.
        UnsafePathError: it is not a regular file.
        StorageError: it cannot be read.
    """
    return read_file(followed(path_from("load_file: path", path)))


def _search(
    saving: Saving,
    state: Any,
    threshold: float,
    evaluate: Callable[[Any], Any],
    mode: Literal["min", "max"],
) -> tuple[Quality, Decision]:
    tree = flatten(state)
    tensors = {leaf.name: leaf.tensor for leaf in tree.leaves}

    def measure(draft: Draft) -> Quality:
        decoded = tensors | dict(draft.decoded)
        return _measured(evaluate, unflatten(tree.skeleton, decoded.__getitem__))

    reference = _measured(evaluate, state)
    decision = Manager().choose(
        saving.space, saving.draft, measure, reference, threshold, mode, SearchState()
    )
    return reference, decision


def _measured(evaluate: Callable[[Any], Any], state: Any) -> Quality:
    try:
        return Quality.of(evaluate(state))
    except EvaluationError:
        raise
    except Exception as error:
        raise EvaluationError(
            f"evaluate raised {type(error).__name__}: {error}; nothing was saved."
        ) from error
