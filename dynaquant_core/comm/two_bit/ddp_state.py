"""One rank's side of two-bit compression under DDP: a residual a parameter, one all-gather a bucket."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm.attach import require_agreement, trained_parameters
from dynaquant_core.comm.two_bit.codes import require_floating
from dynaquant_core.comm.two_bit.exchange import Bucket, Scaler, Sent, all_gather, dense, views_of
from dynaquant_core.comm.two_bit.layout import Layout
from dynaquant_core.comm.two_bit.residuals import Residuals
from dynaquant_core.comm.two_bit.saved import put_back, state_of
from dynaquant_core.comm.two_bit.settings import TwoBitSettings
from dynaquant_core.config import nearest, require
from dynaquant_core.state import bare_name

__all__ = ["TwoBitState"]

logger = logging.getLogger(__name__)


@final
class TwoBitState:
    """The residual of one rank, and what the exchange needs to know; made by `register`.

    Guarantee (``reduce="sum"``): over any number of steps, what the ranks received plus their residuals is
    the sum of their gradients, up to float32 rounding.

    Args:
        model: the DDP model.
        settings: the same on every rank.
        scaler: see `register`.
    """

    def __init__(
        self, model: DistributedDataParallel, settings: TwoBitSettings, scaler: Scaler | None = None
    ) -> None:
        parameters = trained_parameters(model.module)
        for name, parameter in parameters.items():
            require_floating(parameter, f"parameter {name!r}")
        require(bool(parameters), "two_bit: the model has no parameter that is trained.")
        self.settings = settings
        self.group = model.process_group
        self.rank, self.ranks = self.group.rank(), self.group.size()
        #: Completed synchronised backward passes.
        self.step = 0
        #: Bytes that this rank has handed to all-gathers.
        self.bytes_handed_in = 0
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._scale = 1.0
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._limits = settings.limits(parameters)
        self._may_idle = bool(model.find_unused_parameters or model.static_graph)
        self._residuals = Residuals(parameters)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._sent: list[Sent] = []
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        meant = settings.as_bytes() + repr(shapes).encode()
        require_agreement(meant, self.group, next(iter(parameters.values())).device)
        if self.ranks == 1:
            logger.warning(
                "two_bit: the only rank compresses for nobody; gradients lose detail, no byte is saved"
            )

    def residual(self, name: str) -> Tensor:
        """What a parameter's gradients have left unsent: float32 of its shape, live.

        Args:
            name: of the parameter, with or without what wrappers put into it.

        Raises:
            ConfigError: no parameter of that name is trained; the nearest is named.
        """
        known, found = self._residuals.by_name, bare_name(name)
        require(found in known, f"two_bit: no parameter {name!r} is trained; {nearest(found, known)}")
        self._settle()
        return known[found]

    def exchange(self, bucket: Bucket) -> Future[Tensor]:
        """Starts the exchange of one bucket; the future holds its reduced gradients.

        Raises:
            UnsupportedStateError: its gradient is sparse; in the warm-up too, for it could not end.
        """
        if bucket.buffer().layout != torch.strided:
            names = ", ".join(repr(self._names[parameter]) for parameter in bucket.parameters())
            require_floating(bucket.buffer(), f"the gradient of {names}")
        if bucket.index() == 0:
            self._settle()
            self._scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        warm = self.step >= self.settings.warmup
        future = self._compressed(bucket) if warm else self._dense(bucket.buffer())
        if bucket.is_last():  # buckets come in their order
            self.step += 1
        return future

    def state_dict(self) -> dict[str, Any]:
        """The residual of this rank: a tree that a checkpoint can hold, its tensors the live ones."""
        self._settle()
        return state_of(self.rank, self.ranks, self.step, self._residuals)

    def load_state_dict(self, state: Any) -> None:
        """Takes `state_dict` back, on the rank that gave it.

        Raises:
            StateMismatchError: it is another rank's, of another number of ranks (see `redistribute`), or of
                another model; nothing was touched.
        """
        self.step = put_back(state, self.rank, self.ranks, self._residuals)
        self._sent.clear()

    def _dense(self, buffer: Tensor) -> Future[Tensor]:
        # DDP multiplies by the reciprocal: where ranks are no power of two, that is another float32.
        return dense(buffer.mul_(1.0 / self.settings.divisor(self.ranks)), self.group)

    def _compressed(self, bucket: Bucket) -> Future[Tensor]:
        buffer, views = bucket.buffer(), views_of(bucket)
        names = tuple(self._names[parameter] for parameter in bucket.parameters())
        if names not in self._layouts:
            sizes = zip(names, views, strict=True)
            self._layouts[names] = Layout.of((view.numel(), self._limits[name]) for name, view in sizes)
        layout, residual = self._layouts[names], self._residuals.flat(names, views, buffer)
        idle = self._idle(names, views)
        gradient = buffer if self._scale == 1.0 else buffer.float() * (1.0 / self._scale)
        packed = layout.encode(residual, gradient)
        for own, kept in idle:
            own.copy_(kept)
        sent = Sent(layout, residual, packed)
        if self._scaler is not None:
            self._sent.append(sent)
        self.bytes_handed_in += packed.numel()
        return all_gather(packed, self.group, lambda gathered: self._decode(gathered, sent, buffer))

    def _decode(self, gathered: Tensor, sent: Sent, buffer: Tensor) -> Tensor:
        total = sent.layout.decode_sum(gathered, self.settings.divisor(self.ranks))
        if self._scale != 1.0:
            total *= self._scale
        buffer.copy_(total)
        if self._scaler is not None:
            sent.arrived = buffer.isfinite().all()
        return buffer

    def _idle(self, names: tuple[str, ...], views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Residuals set to zero for a moment, with what they were: without a gradient nothing is sent.

        DDP throws away what is reduced for a parameter that no rank has used, so a residual that were sent
        for it would be lost.  The bucket says no more of it than that its gradient is zero throughout.
        """
        if not self._may_idle:
            return []
        used = torch.stack([view.any() for view in views]).tolist()
        idle = [
            self._residuals.by_name[name] for name, is_used in zip(names, used, strict=True) if not is_used
        ]
        kept = [(own, own.clone()) for own in idle]
        for own in idle:
            own.zero_()
        return kept

    def _settle(self) -> None:
        """Takes back what was sent in the last step, if the scaler has skipped it."""
        if not all(bool(sent.arrived) for sent in self._sent):
            for sent in self._sent:
                sent.take_back()
        self._sent.clear()
