"""Whether ranks go on from the same: two bits of each other's gradients, added to other weights, stay apart.

DDP compares weights once, when the model is wrapped.  Whatever is loaded after that is each rank's own
affair, and a checkpoint a rank that rounds weights rounds them in each its own way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import torch
from torch import Tensor, distributed

from dynaquant_core.comm.attach import require_agreement
from dynaquant_core.state import digest_of

__all__ = ["ALIKE", "LOOKS", "Alike"]

#: Exchanges that compare.  At the first weights are what was loaded; at the second they show moments.
LOOKS: Final = 2

#: What to do about other weights, the end of a sentence.
ALIKE: Final = (
    "restore all of them, then call two_bit.from_first_rank(model, optimizer) before the first forward pass."
)


@final
class Alike:
    """Compares steps and weights at the first exchanges of a life, and after a load; then costs nothing.

    Args:
        weights: what is trained, by name, the same names on all ranks.
        group: the ranks.
        device: one that the group can send from.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], group: distributed.ProcessGroup, device: torch.device
    ) -> None:
        self._weights, self._group, self._device = weights, group, device
        self.again()

    def again(self) -> None:
        """Something was loaded."""
        self._left = LOOKS if self._group.size() > 1 else 0

    def require(self, step: int) -> None:
        """Before an exchange; collective where it compares.

        A rank that has run out of data (`join`) takes no steps, so its weights stay behind until the others
        have ended: they are compared without it.

        Args:
            step: exchanges done by this rank: some would else reduce densely what others compress.

        Raises:
            StateMismatchError: on every rank.
        """
        if not self._left:
            return
        self._left -= 1
        self._compare(
            str(step).encode(),
            f"have done another number of steps than rank 0 (here {step}); restore all ranks from "
            f"checkpoints of one step.",
        )
        self._compare(
            None if _has_run_out() else str(digest_of(self._weights)).encode(),
            f"hold other weights than rank {{first}} at step {step}, and would train other models for ever; "
            f"{ALIKE}",
        )

    def _compare(self, what: bytes | None, otherwise: str) -> None:
        require_agreement(what, self._group, self._device, otherwise)


def _has_run_out() -> bool:
    """Whether an exchange is one that `join` makes for a rank without data, in no backward pass."""
    return torch._C._current_graph_task_id() < 0
