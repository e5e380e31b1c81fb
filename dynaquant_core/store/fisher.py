"""How much each weight matters to the loss, as far as the optimizer knows: its mean squared gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from dynaquant_core.state import Owned, moment_kind

__all__ = ["Fisher"]

#: Adam's usual decay; a step count undoes the bias of a young average towards zero.
DECAY = 0.999


class Fisher(Mapping[str, float]):
    """Mean squared gradient by weight name, where an optimizer averages squares; computed when looked up.

    Args:
        owned: what an optimizer holds of each weight.
        copies: name of a copy of a weight, such as its moving average -> name of the weight; what is known of
            that one holds for both.

    Example:
        >>> import torch
        >>> squares = torch.full((4,), 0.25)
        >>> Fisher({"w": {"exp_avg_sq": squares}, "b": {"momentum_buffer": squares}})["w"]
        0.25
    """

    def __init__(self, owned: Mapping[str, Owned], copies: Mapping[str, str] | None = None) -> None:
        known = {**owned, **{copy: owned[name] for copy, name in (copies or {}).items()}}
        self._squares = {
            name: kinds[square]
            for name, kinds in known.items()
            if (square := next((kind for kind in kinds if _averages_squares(kind)), None))
            and kinds[square].is_floating_point()  # complex weights have complex squares
        }
        self._steps = {name: kinds["step"] for name, kinds in known.items() if "step" in kinds}

    def __getitem__(self, name: str) -> float:
        mean = float(self._squares[name].detach().float().mean())
        return mean / self._share(name)

    def _share(self, name: str) -> float:
        """What a young average has reached of what it averages."""
        steps: Tensor | None = self._steps.get(name)
        taken = 0.0 if steps is None or steps.numel() != 1 else float(steps)
        return 1.0 - DECAY**taken if taken > 0 else 1.0

    def __contains__(self, name: object) -> bool:
        return name in self._squares

    def __iter__(self) -> Iterator[str]:
        return iter(self._squares)

    def __len__(self) -> int:
        return len(self._squares)


def _averages_squares(kind: str) -> bool:
    """Second moments but sums over all time and maxima."""
    return moment_kind(kind) == "second" and kind not in {"sum", "exp_inf", "acc_delta"}
