"""Whether the ranks that average gradients hold the same model: asked when they begin, and after a load.

`wrap` gives every rank the first one's weights.  What is loaded after that is each rank's own affair, and an
average of gradients would belong to none of the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory.samo.reduce import differing, refusing
from dynaquant_core.memory.samo.slots import Slot
from dynaquant_core.memory.samo.stepped import states_of
from dynaquant_core.state import digest_of

__all__ = ["Agreed"]

#: What ranks are told of each other, in the order in which they compare it.
MASKS: Final = "masks"
WEIGHTS: Final = "weights"
STATES: Final = "optimizer states"


class Agreed:
    """Compares masks, theta32 and the optimizer's state over a group, once and after a load.

    Else ranks only tell each other, in one number before each average, whether one of them has loaded: who
    has would compare alone, against gradients of the others.

    Args:
        slots: the trained parameters.
        optimizer: over the slots' masters.
        group: the ranks.
    """

    def __init__(self, slots: Sequence[Slot], optimizer: Optimizer, group: dist.ProcessGroup) -> None:
        self._slots, self._optimizer, self._group = slots, optimizer, group
        self._due = True

    def doubt(self) -> None:
        """Something was loaded: compare before the next average."""
        self._due = True

    def require(self) -> None:
        """Before ranks average; collective.

        Raises:
            StateMismatchError: on all ranks, where they differ; nothing was averaged.
        """
        if refusing(self._due, self._group) is None:
            return
        said = {name: str(digest_of(one)).encode() for name, one in self._held().items()}
        found = differing(said, self._group, self._slots[0].param.device)
        if found:
            raise StateMismatchError(
                f"samo: the ranks hold different {', '.join(found)}; an average of their gradients "
                "would belong to none of them, so nothing was averaged; restore the same checkpoint (of one "
                "folder or file, at one step) on every rank, then zero_grad() and go on."
            )
        self._due = False

    def _held(self) -> dict[str, dict[str, Tensor]]:
        masks = {slot.name: slot.index for slot in self._slots if slot.index is not None}
        weights: dict[str, Tensor] = {slot.name: slot.master for slot in self._slots}
        states = {}
        for number, state in enumerate(states_of(self._optimizer)):
            for slot in self._slots:
                entry = state.get(slot.master, {})
                for key in sorted(entry):
                    if isinstance(entry[key], Tensor):
                        states[f"{number}.{slot.name}.{key}"] = entry[key]
        return {MASKS: masks, WEIGHTS: weights, STATES: states}
