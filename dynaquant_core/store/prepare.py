"""From a training state to all that a save needs besides its base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.arithmetic import plainly
from dynaquant_core.config import require
from dynaquant_core.methods.base import Hints, Method, Reference
from dynaquant_core.methods.registry import method_for_config
from dynaquant_core.state import Leaf, Tree, flatten, given_names, overlapping, read_only
from dynaquant_core.store.elsewhere import names_elsewhere
from dynaquant_core.store.hints import hints_for
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.meta import LIMIT
from dynaquant_core.store.models import buffer_names, frozen_names, parameters_of, stand_in_names
from dynaquant_core.store.names import whole_step
from dynaquant_core.store.parts import Base, Division, Known, Settings, divide
from dynaquant_core.store.rounding import with_rounded_vectors
from dynaquant_core.store.saving import Saving, Sealed

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state that was taken apart.

    Args:
        step: completed optimizer steps.
        tree: skeleton and tensors.
        division: which tensor goes into which part.
        hints: gradients and layer types.
        unwritable: names of the model's tensors, and of those beside it, in memory that cannot be written.
    """

    step: int
    tree: Tree
    division: Division
    hints: Hints
    unwritable: frozenset[str] = frozenset()

    @plainly
    def saving(
        self,
        base: Base | None,
        write: Callable[[Sealed], CheckpointInfo] | None,
        last: Base | None = None,
    ) -> Saving:
        """Begins the save; see `saving.Saving`.

        Args:
            base: what a delta would be written against.
            write: how it is committed.
            last: the run's last checkpoint, where a method may want to know it though a key is due.
        """
        before = base or last
        self.hints.before = None if before is None else _held_by(before, self.division.methods["weights"])
        return Saving(self.step, self.tree, self.division, self.hints, base, write)


@plainly
def prepare(
    settings: Settings,
    step: int,
    state: Any,
    *,
    gradients: Mapping[str, Tensor] | None,
    model: Any,
    config: Any = None,
    optimizers: Iterable[Optimizer] = (),
    homes: Sequence[str] = (),
) -> Prepared:
    """Takes ``state`` apart; arguments as those of `CheckpointStore.save`.

    With ``optimizers``, whose tensors are in ``state``, they say which weight each of those is of.  With
    ``homes``, what lies elsewhere is kept bit for bit (`names_elsewhere`).

    Raises:
        UnsupportedStateError: the tree holds an object that a checkpoint cannot hold.
        ConfigError: ``step``, ``config``, ``gradients`` or ``model`` is not what it should be.
    """
    step = whole_step(step)
    require(0 <= step < LIMIT, f"step must be a whole number from 0 to below 2**63, got {step!r}.")
    tree = flatten(state)
    tensors = {leaf.name: leaf.tensor for leaf in tree.leaves}
    kept = given_names(tree.leaves) | buffer_names(tensors, model) | stand_in_names(tree.leaves, model)
    kept |= names_elsewhere(tree, homes)
    # A candidate of one would be written over the other, and no reader gets both.
    kept |= overlapping({leaf.name: leaf.tensor for leaf in tree.leaves if _is_live(leaf)})
    unwritable = _unwritable(tree, model)
    kept |= unwritable
    known = Known(kept, frozen_names(tensors, model), parameters_of(model), tuple(optimizers))
    method = method_for_config(config, settings.weights)
    tree = with_rounded_vectors(tree, config, method, kept, settings.exact)
    division = divide(tree, settings, method, known)
    hints = hints_for(division.tensors.get("weights", {}), division.roles, gradients, model, division.owned)
    return Prepared(step, tree, division, hints, unwritable)


def _unwritable(tree: Tree, model: Any) -> frozenset[str]:
    """What neither a search nor a restore can write; without a model the state is no run's, but a file's."""
    if model is None:
        return frozenset()
    return read_only({leaf.name: leaf.tensor for leaf in tree.leaves if leaf.source == "tensor"})


def _held_by(before: Base, method: Method) -> Reference | None:
    """What a reader held of the weights, whichever they were: one that came or went changes no other.

    None where there were none, or another method wrote them.
    """
    held = before.parts.get("weights")
    if held is None or not held.specs or held.written.method != method.name:
        return None
    return held.reference


def _is_live(leaf: Leaf) -> bool:
    """Whether it is a tensor of its owner's beside the optimizer's, in whose memory it may lie."""
    return leaf.source == "tensor" and not leaf.in_optimizer
