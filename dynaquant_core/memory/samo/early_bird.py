"""When to draw a ticket: the mask has stopped moving (Early-Bird tickets; arXiv 2302.05045, sec. 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.config import require, require_number
from dynaquant_core.errors import StateMismatchError

__all__ = ["EarlyBird"]

#: Bits set in each byte.
_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1).astype(np.int64)


class EarlyBird:
    """Looks at a mask each epoch, and draws it when it is near each of those before it.

    Masks are kept as one bit a weight, so the history costs window / 8 bytes a weight until the draw.

    Args:
        distance: normalised Hamming distance (share of all weights that changed sides) below which two masks
            are near, in (0, 1]; the paper's 0.1.
        window: how many masks before must be near; the paper's 5, so the sixth epoch is the first that can
        draw.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> bird = EarlyBird(window=1)
        >>> bird.look({"w": torch.tensor([True, False])}), bird.look({"w": torch.tensor([True, False])})
        (False, True)
    """

    def __init__(self, *, distance: float = 0.1, window: int = 5) -> None:
        require_number("EarlyBird", "distance", distance, 0.0, 1.0)
        good = isinstance(window, int) and not isinstance(window, bool) and window >= 1
        require(
            good and distance > 0, f"EarlyBird: distance {distance!r} and window {window!r} must be positive."
        )
        self.distance, self.window = distance, window
        self._sizes: dict[str, int] = {}
        self._seen: deque[np.ndarray[Any, np.dtype[np.uint8]]] = deque(maxlen=window)

    def look(self, masks: Mapping[str, Tensor]) -> bool:
        """Takes this epoch's masks; True: draw them.

        Args:
            masks: bool, by name; the same names and shapes at each call.

        Raises:
            StateMismatchError: other names or shapes than before.
        """
        sizes = {name: mask.numel() for name, mask in masks.items()}
        if self._seen and sizes != self._sizes:
            raise StateMismatchError(
                "EarlyBird: the masks' names or shapes changed between epochs; begin anew."
            )
        self._sizes = sizes
        flat = torch.cat([mask.detach().reshape(-1).cpu() for mask in masks.values()]).numpy()
        packed = np.packbits(flat)
        far = [int(_ONES[packed ^ before].sum()) / flat.size >= self.distance for before in self._seen]
        drawn = len(far) == self.window and not any(far)
        self._seen.append(packed)
        return drawn

    def state_dict(self) -> dict[str, Any]:
        """The masks seen, packed: what a checkpoint needs."""
        seen = [torch.from_numpy(mask) for mask in self._seen]
        return {"distance": self.distance, "window": self.window, "sizes": dict(self._sizes), "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` back.

        Raises:
            StateMismatchError: it is not one.
        """
        missing = {"distance", "window", "sizes", "seen"} - set(state)
        if missing:
            raise StateMismatchError(f"EarlyBird: the state lacks {', '.join(sorted(missing))}.")
        self.distance, self.window = float(state["distance"]), int(state["window"])
        self._sizes = {str(name): int(size) for name, size in state["sizes"].items()}
        self._seen = deque((mask.cpu().numpy().copy() for mask in state["seen"]), maxlen=self.window)
