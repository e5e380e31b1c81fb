"""Two-bit reduction inside one process: several replicas, the first of which sums (MXNet's local mode)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dynaquant_core.comm.attach import trained_parameters
from dynaquant_core.comm.two_bit import codes
from dynaquant_core.comm.two_bit.residuals import Residuals
from dynaquant_core.comm.two_bit.saved import require_step
from dynaquant_core.comm.two_bit.settings import Limits, Reduce, Threshold, TwoBitSettings
from dynaquant_core.config import require
from dynaquant_core.errors import StateMismatchError

__all__ = ["LocalReducer"]


@final
class LocalReducer:
    """Replaces the gradients of replicas by the sum or mean of their two-bit codes.

    Every replica compresses on its own device, the first one too, so that no replica's samples are favoured;
    the codes travel to the first replica's device, are decoded and added there, and the result goes back
    dense.  A replica whose parameter has no gradient sends nothing for it and keeps what it holds; a
    parameter without a gradient on all replicas stays so.

    Args:
        replicas: two modules or more of the same parameters, each on one device.
        threshold: t, or name pattern -> t; see `TwoBitSettings`, also for the others.
        negative_threshold: size of what is sent below zero; None: ``threshold``.
        reduce: "mean" over all replicas, or "sum".
        warmup: first calls of `reduce` that are dense.

    Raises:
        ConfigError: a setting is wrong, there are too few replicas, or their parameters differ.
        UnsupportedStateError: a parameter is of a dtype that has no two-bit codes.

    Example:
        >>> twins = [nn.Linear(2, 1, bias=False) for _ in range(2)]
        >>> reducer = LocalReducer(twins, threshold=0.5, reduce="sum")
        >>> twins[0].weight.grad = torch.tensor([[0.6, 0.4]])
        >>> twins[1].weight.grad = torch.tensor([[0.5, -0.7]])
        >>> reducer.reduce()
        >>> twins[0].weight.grad.tolist(), twins[1].weight.grad.tolist()
        ([[1.0, -0.5]], [[1.0, -0.5]])

    Source: MXNet pull request 8662.
    """

    def __init__(
        self,
        replicas: Sequence[nn.Module],
        threshold: Threshold = 0.5,
        negative_threshold: Threshold | None = None,
        reduce: Reduce = "mean",
        *,
        warmup: int = 0,
    ) -> None:
        self.settings = TwoBitSettings(
            threshold=threshold, negative_threshold=negative_threshold, reduce=reduce, warmup=warmup
        )
        listed = isinstance(replicas, Sequence | nn.ModuleList)
        listed = listed and all(isinstance(one, nn.Module) for one in replicas)
        require(listed, "two_bit: replicas must be a list of modules, two or more.")
        twice = len({id(replica) for replica in replicas}) < len(replicas)
        require(not twice, "two_bit: one module is given as two replicas; give each its own.")
        self._parameters = [trained_parameters(replica) for replica in replicas]
        self._limits = self.settings.limits(_common_names(self._parameters))
        self._residuals = [Residuals(parameters) for parameters in self._parameters]
        #: Completed calls of `reduce`.
        self.step = 0
        #: Bytes that the replicas have handed in since this reducer was made, and what they are uncompressed.
        self.handed_bytes, self.dense_bytes = 0, 0

    def reduce(self) -> None:
        """Call it when all replicas have their gradients; afterwards all have the same ones.

        Raises:
            UnsupportedStateError: a gradient is sparse; nothing was changed.
        """
        for parameters in self._parameters:
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    codes.require_floating(parameter.grad, f"the gradient of {name!r}")
        for name, limits in self._limits.items():
            if any(parameters[name].grad is not None for parameters in self._parameters):
                self._reduce(name, limits)
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """The residuals of all replicas: a tree that a checkpoint can hold, its tensors the live ones."""
        return {"step": self.step, "replicas": [residuals.state_dict() for residuals in self._residuals]}

    def check_state_dict(self, state: Any) -> None:
        """Raises what `load_state_dict` would raise, and touches nothing."""
        stored = state.get("replicas") if isinstance(state, Mapping) else None
        if not isinstance(stored, Sequence) or len(stored) != len(self._residuals) or "step" not in state:
            raise StateMismatchError(
                f"two_bit: expected the state of a LocalReducer of {len(self._residuals)} replicas; nothing "
                f"was restored."
            )
        require_step(state["step"])
        for residuals, own in zip(self._residuals, stored, strict=True):
            residuals.require_fit(own)

    def load_state_dict(self, state: Any) -> None:
        """Takes `state_dict` back.

        Raises:
            StateMismatchError: it is of another model or number of replicas, or broken; nothing was touched.
        """
        self.check_state_dict(state)
        for residuals, own in zip(self._residuals, state["replicas"], strict=True):
            residuals.load_state_dict(own)
        self.step = int(state["step"])

    def _reduce(self, name: str, limits: Limits) -> None:
        first = self._parameters[0][name]
        count = len(self._parameters)
        divisor = self.settings.divisor(count)
        dense = self.step < self.settings.warmup
        if dense:
            total = self._dense(name, first.device) / divisor
        else:
            rows = torch.stack([packed.to(first.device) for packed in self._packed(name, limits)])
            self.handed_bytes += rows.nbytes
            total = codes.decode_sum(rows, first.numel(), *limits, divisor)
        for parameters, residuals in zip(self._parameters, self._residuals, strict=True):
            parameter = parameters[name]
            whole = total.reshape(parameter.shape).to(parameter.device)
            parameter.grad = whole.to(parameter.dtype, copy=True)
            lost = None if dense else codes.lost_to_rounding(whole, parameter.grad, divisor / count)
            if lost is not None:
                residuals.by_name[name].add_(lost)

    def _dense(self, name: str, device: torch.device) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=device)
        for parameters in self._parameters:
            gradient = parameters[name].grad
            if gradient is not None:
                self.dense_bytes += gradient.nbytes
                self.handed_bytes += gradient.nbytes
                total = total + gradient.to(device).float()
        return total

    def _packed(self, name: str, limits: Limits) -> list[Tensor]:
        packed = []
        for parameters, residuals in zip(self._parameters, self._residuals, strict=True):
            gradient = parameters[name].grad
            if gradient is not None:
                flat = gradient.reshape(-1)
                self.dense_bytes += flat.nbytes
                held = residuals.flat((name,), [flat.view(gradient.shape)], flat)
                packed.append(codes.encode(held, flat, *limits))
        return packed


def _common_names(replicas: list[dict[str, nn.Parameter]]) -> list[str]:
    require(len(replicas) > 1, f"two_bit: expected two replicas or more, got {len(replicas)}.")
    lazy = [name for replica in replicas for name, parameter in replica.items() if is_lazy(parameter)]
    require(
        not lazy,
        f"two_bit: parameter {(lazy or [''])[0]!r} has no shape yet (a lazy module); call each replica on a "
        "batch first.",
    )
    shapes = [{name: tuple(item.shape) for name, item in parameters.items()} for parameters in replicas]
    for index, other in enumerate(shapes):
        differing = sorted({name for name, _ in shapes[0].items() ^ other.items()})
        require(
            not differing,
            f"two_bit: replica {index} differs from the first in {', '.join(differing[:4])}; expected the "
            f"same parameters in all.",
        )
    for replica in replicas:
        for name, parameter in replica.items():
            codes.require_floating(parameter, f"parameter {name!r}")
    require(bool(shapes[0]), "two_bit: the replicas have no parameter that is trained.")
    return list(shapes[0])
