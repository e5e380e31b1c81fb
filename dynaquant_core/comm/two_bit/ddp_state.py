"""One rank's side of two-bit compression under DDP: a residual a parameter, one all-gather a bucket."""

from __future__ import annotations

import logging
from typing import Any, final

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm.attach import require_agreement, trained_parameters
from dynaquant_core.comm.two_bit.alike import Alike
from dynaquant_core.comm.two_bit.codes import lost_to_rounding, require_floating
from dynaquant_core.comm.two_bit.exchange import Bucket, all_gather, dense, views_of
from dynaquant_core.comm.two_bit.layout import Layout
from dynaquant_core.comm.two_bit.residuals import Residuals
from dynaquant_core.comm.two_bit.saved import put_back, require_fit, state_of
from dynaquant_core.comm.two_bit.sent import Scaler, Sent, Steps
from dynaquant_core.comm.two_bit.settings import TwoBitSettings
from dynaquant_core.comm.two_bit.usage import Usage
from dynaquant_core.config import nearest, require
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.state import bare_name

__all__ = ["TwoBitState"]

logger = logging.getLogger(__name__)

#: What ties a state to the job it was made in; a copy has none of it.
TIES = ("group", "_names", "_steps", "_usage", "_layouts", "_alike")


@final
class TwoBitState:
    """The residual of one rank, and what the exchange needs to know; made by `register`.

    Guarantee (``reduce="sum"``): over any number of steps, what the ranks received plus their residuals is
    the sum of their gradients, up to float32 rounding; what gradients of less than float32 lose when they
    arrive rounded goes back into the residuals.

    A copy (`copy.deepcopy`, pickle) holds the residual and exchanges nothing; its model may register anew.

    Args:
        model: the DDP model.
        settings: the same on every rank.
        scaler: see `register`.
    """

    def __init__(
        self, model: DistributedDataParallel, settings: TwoBitSettings, scaler: Scaler | None = None
    ) -> None:
        parameters = trained_parameters(model.module, model.parameters_to_ignore)
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
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._limits = settings.limits(parameters)
        self._steps = Steps(scaler)
        self._residuals = Residuals(parameters)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        device = next(iter(parameters.values())).device
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        meant = settings.as_bytes() + repr((shapes, self._steps.scaled)).encode()
        require_agreement(
            meant,
            self.group,
            device,
            "compress other tensors or with other settings than rank 0; give every rank the same model, the "
            "same settings, and a scaler or none.",
        )
        self._alike = Alike(parameters, self.group, device)
        may_idle = model.find_unused_parameters or model.static_graph
        self._usage = Usage(parameters) if may_idle else None
        if self.ranks == 1:
            logger.warning(
                "two_bit: the only rank compresses for nobody; gradients lose detail, no byte is saved"
            )

    @property
    def attached(self) -> bool:
        """Whether this is the state that its model exchanges through, and no copy of it."""
        return hasattr(self, "group")

    def residual(self, name: str) -> Tensor:
        """What a parameter's gradients have left unsent: float32 of its shape, live.

        Args:
            name: of the parameter, with or without what wrappers put into it.

        Raises:
            ConfigError: no parameter of that name is trained; the nearest is named.
        """
        known = self._residuals.by_name
        found = name if name in known else bare_name(name)
        require(found in known, f"two_bit: no parameter {name!r} is trained; {nearest(found, known)}")
        self._look()
        return known[found]

    def exchange(self, bucket: Bucket) -> Future[Tensor]:
        """Starts the exchange of one bucket; the future holds its reduced gradients.

        Raises:
            UnsupportedStateError: its gradient is sparse; in the warm-up too, for it could not end.
            StateMismatchError: a parameter is in it that was frozen when the compression was registered; or
                ranks are at different steps, or hold different weights.
        """
        names = tuple(map(self._name, bucket.parameters()))
        if bucket.buffer().layout != torch.strided:
            require_floating(bucket.buffer(), f"the gradient of {', '.join(map(repr, names))}")
        if bucket.index() == 0:
            self._alike.require(self.step)
            self._steps.begin()
        warm = self.step >= self.settings.warmup
        future = self._compressed(bucket, names) if warm else self._dense(bucket.buffer())
        if bucket.is_last():  # buckets come in their order
            self.step += 1
            if self._usage is not None:
                self._usage.clear()
        return future

    def state_dict(self) -> dict[str, Any]:
        """The residual of this rank: a tree that a checkpoint can hold, its tensors the live ones."""
        self._look()
        return state_of(self.rank, self.ranks, self.step, self.settings.reduce, self._residuals)

    def check_state_dict(self, state: Any) -> None:
        """Raises what `load_state_dict` would raise, and touches nothing."""
        require_fit(state, self.rank, self.ranks, self._residuals)

    def load_state_dict(self, state: Any) -> None:
        """Takes `state_dict` back, on the rank that gave it.

        Raises:
            StateMismatchError: it is another rank's, of another number of ranks (see `redistribute`), or of
                another model; nothing was touched.
        """
        self.step = put_back(state, self.rank, self.ranks, self._residuals)
        if self.attached:
            self._alike.again()
            self._steps.forget()

    def __getstate__(self) -> dict[str, Any]:
        """The state without what ties it to its job."""
        self._look()
        return {key: value for key, value in self.__dict__.items() if key not in TIES}

    def _look(self) -> None:
        if self.attached:
            self._steps.look()

    def _name(self, parameter: Parameter) -> str:
        if parameter not in self._names:
            raise StateMismatchError(
                f"two_bit: DDP exchanges a parameter of shape {tuple(parameter.shape)} that was frozen when "
                f"the compression was registered; freeze before DDP wraps the model, or after registering."
            )
        return self._names[parameter]

    def _dense(self, buffer: Tensor) -> Future[Tensor]:
        # DDP multiplies by the reciprocal: where ranks are no power of two, that is another float32.
        return dense(buffer.mul_(1.0 / self.settings.divisor(self.ranks)), self.group)

    def _compressed(self, bucket: Bucket, names: tuple[str, ...]) -> Future[Tensor]:
        buffer, views = bucket.buffer(), views_of(bucket)
        if names not in self._layouts:
            sizes = zip(names, views, strict=True)
            self._layouts[names] = Layout.of((view.numel(), self._limits[name]) for name, view in sizes)
        layout, residual = self._layouts[names], self._residuals.flat(names, views, buffer)
        used = [] if self._usage is None else self._usage.of(names)
        kept = self._unused(names, used)
        there = {name: view.clone() for name, view in zip(names, views, strict=True) if name in kept}
        scale = self._steps.scale
        packed = layout.encode(residual, buffer if scale == 1.0 else buffer.float() * (1.0 / scale))
        start = int(buffer.storage_offset())
        parts = [
            (item, item._version, int(view.storage_offset()) - start, view.numel())
            for item, view in zip(bucket.parameters(), views, strict=True)
        ]
        sent = Sent(layout, residual, packed, parts)
        self._steps.add(sent)
        handed = torch.cat([packed, packed.new_tensor(used)]) if used else packed
        self.bytes_handed_in += handed.numel()

        def decode(gathered: Tensor) -> Tensor:
            for one in (*kept.values(), *there.values()):
                if one.is_cuda:  # a stream of the future's reads them, and backward's may take their memory
                    one.record_stream(torch.cuda.current_stream(one.device))
            self._receive(gathered[:, : layout.bytes], sent, buffer, scale)
            by_any = gathered[:, layout.bytes :].any(0).tolist() if kept else []
            idle = {
                name for name, is_used in zip(names, by_any, strict=False) if not is_used and name in kept
            }
            for name, view in zip(names, views, strict=True):
                if name in idle:  # what has arrived for it DDP throws away, if its gradient is elsewhere
                    self._residuals.by_name[name].copy_(kept[name])
                    view.copy_(there[name])
            if idle:
                sent.leave_out([name in idle for name in names])
            return buffer

        return all_gather(handed, self.group, decode)

    def _unused(self, names: tuple[str, ...], used: list[bool]) -> dict[str, Tensor]:
        """What is held for parameters that this rank has not used; empty where nobody asks."""
        held = self._residuals.by_name
        return {name: held[name].clone() for name, own in zip(names, used, strict=False) if not own}

    def _receive(self, gathered: Tensor, sent: Sent, buffer: Tensor, scale: float) -> None:
        """Adds up what has arrived, uint8[ranks, bytes], into ``buffer``."""
        sent.give_again()  # somebody may have looked while this was under way
        divisor = self.settings.divisor(self.ranks)
        total = sent.layout.decode_sum(gathered, divisor)
        if scale != 1.0:
            total *= scale
        buffer.copy_(total)
        sent.rounding = lost_to_rounding(total, buffer, divisor / self.ranks / scale)
        if sent.rounding is not None:
            sent.residual.add_(sent.rounding)
        if self._steps.scaled:
            sent.arrived = buffer.isfinite().all()
