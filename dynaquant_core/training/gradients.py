"""The moving average of each parameter's gradient, tapped where every framework's step ends.

Paper sec. 4.1: EMA_t = beta * g_t + (1 - beta) * EMA_(t-1), beta = 0.9 on the new gradient, the first
gradient as a start.  Deviation: the tap is `Optimizer.register_step_post_hook`, so gradients are seen
accumulated, reduced, unscaled and clipped, and a step that a scaler skips is not seen at all.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.hooks import OwnedHooks, untraced, watched
from dynaquant_core.quantize.flat import FLOATS
from dynaquant_core.state.leaves import is_plain
from dynaquant_core.training.pinned import PinnedCopies, local_shard

__all__ = ["BETA", "GradientCollector", "moment_averages"]

#: Weight of the new gradient (paper sec. 4.1).
BETA = 0.9

#: Key under which the scaler's verdict travels with a step's gradients.
FOUND_INF = ""


class GradientCollector:
    """Averages gradients on the CPU while it records; costs nothing while it does not.

    Gradients that are missing leave their average as it is; so do those that are not finite.  Those of
    another shape (a table that was resized) begin a new one.  Sparse ones are made dense; of sharded ones
    (DTensor) the local shard counts.  The averages are float32 on the CPU; on CUDA the copies run on a side
    stream into pinned buffers, and the averaging follows one step later.

    Args:
        optimizers: whose steps are watched, or those of what they wrap; of one that has no hooks, and wraps
            none that has, nothing is recorded.
        names: of the parameters (`parameter_names`); others are passed over.
        spare: leave out optimizers that keep an average themselves (`moment_averages`); for methods with
            ``spares_gradients``, which need no more than that.

    Attributes:
        spare: may be changed with the method.
        seconds: time that the calling thread spent here.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> collector = GradientCollector([optimizer], {model.weight: ("weight",)})
        >>> collector.start()
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> collector.averages()
        {'weight': tensor([[1., 1.]])}
        >>> collector.close()
    """

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        names: Mapping[Tensor, tuple[str, ...]],
        *,
        spare: bool = False,
    ) -> None:
        self.seconds = 0.0
        self.spare = spare
        self._names = names
        self._aliases = {aliases[0]: aliases for aliases in names.values()}
        self._averages: dict[str, Tensor] = {}
        self._recording = False
        self._pinned: dict[Optimizer, PinnedCopies] = {}
        told = _telling(weakref.ref(self))
        seen = [one for one in map(watched, optimizers) if one is not None]
        handles = [optimizer.register_step_post_hook(told) for optimizer in seen]
        self._hooks = OwnedHooks(self, handles)

    @property
    def recording(self) -> bool:
        """Whether steps are being recorded."""
        return self._recording

    def start(self) -> None:
        """Begins a window: the next gradient is the first one of new averages."""
        self.stop()
        self._recording = True

    def stop(self) -> None:
        """Ends the window and frees the averages; pinned buffers are kept for the next one."""
        for copies in self._pinned.values():
            for _ in copies.receive():
                pass
        self._averages = {}
        self._recording = False

    def follow(self, steps_left: float, window: int) -> None:
        """Records exactly while a save is due within ``window`` steps."""
        wanted = steps_left <= window
        if wanted and not self._recording:
            self.start()
        elif self._recording and not wanted:
            self.stop()

    def averages(self) -> dict[str, Tensor]:
        """The averages by parameter name, under every name of a tied one; {} where nothing was recorded."""
        for copies in self._pinned.values():
            self._fold(copies.receive())
        return {alias: mean for name, mean in self._averages.items() for alias in self._aliases[name]}

    def close(self) -> None:
        """Takes the hooks off the optimizers and frees everything."""
        self.stop()
        self._pinned.clear()
        self._hooks.remove()

    def after_step(self, optimizer: Optimizer) -> None:
        """Records the gradients that an optimizer has just stepped with, in a window."""
        if not self._recording or (self.spare and _averages_itself(optimizer)):
            return
        started = time.perf_counter()
        with torch.no_grad():
            self._record(optimizer)
        self.seconds += time.perf_counter() - started

    def _record(self, optimizer: Optimizer) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # set where the optimizer itself unscales (fused)
        gradients = list(self._gradients(optimizer))
        far = [(name, gradient) for name, gradient in gradients if _is_far(gradient)]
        near = [(name, _dense(gradient)) for name, gradient in gradients if not _is_far(gradient)]
        if near and not (isinstance(found_inf, Tensor) and bool(found_inf)):
            self._fold(iter(near))
        if not far:
            return
        copies = self._pinned.setdefault(optimizer, PinnedCopies())
        self._fold(copies.receive())
        if isinstance(found_inf, Tensor):
            far.append((FOUND_INF, found_inf))  # read when it has landed: asking now would stop the device
        copies.send(far)

    def _gradients(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and parameter in self._names and gradient.dtype in FLOATS:
                    yield self._names[parameter][0], gradient

    def _fold(self, gradients: Iterator[tuple[str, Tensor]]) -> None:
        landed = dict(gradients)
        verdict = landed.pop(FOUND_INF, None)
        if verdict is not None and bool(verdict):
            return
        for name, gradient in landed.items():
            fresh = gradient.detach().to("cpu", torch.float32)
            if not _finite(fresh):
                continue
            if name in self._averages and self._averages[name].shape == fresh.shape:
                self._averages[name].lerp_(fresh, BETA)
            else:
                self._averages[name] = fresh.clone(memory_format=torch.contiguous_format)


def _telling(collector: weakref.ref[GradientCollector]) -> Callable[..., None]:
    """A hook that keeps nothing alive: who is given up without `close` would go on recording for ever."""

    def tell(optimizer: Optimizer, *_: Any) -> None:
        held = collector()
        if held is not None:
            held.after_step(optimizer)

    return untraced(tell)


def moment_averages(
    optimizers: Iterable[Optimizer], names: Mapping[Tensor, tuple[str, ...]]
) -> dict[str, Tensor]:
    """What Adam's family knows by itself: its first moment is a slower average of the gradient.

    It serves where a save could not be foreseen (a signal, the end of a run), so that nothing was recorded.

    Returns:
        The optimizer's own tensors by parameter name, of floating-point weights; {} for other optimizers, and
        for those that keep it in a class of their own (8 bits), which arithmetic need not take.
        Ours; not in the paper.
    """
    return {
        alias: average
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        if (average := _average(state)) is not None
        for alias in names.get(parameter, ())
        if average.shape == parameter.shape
    }


def _averages_itself(optimizer: Optimizer) -> bool:
    """Whether an optimizer that has taken a step keeps an average of the gradients."""
    return any(_average(state) is not None for state in optimizer.state.values())


def _average(state: object) -> Tensor | None:
    """The average of the gradients in what an optimizer holds of one parameter."""
    average = state.get("exp_avg") if isinstance(state, Mapping) else None  # its own notes need not be
    if isinstance(average, Tensor) and average.dtype in FLOATS and is_plain(average):
        return average
    return None


def _is_far(gradient: Tensor) -> bool:
    """Whether it is worth a side stream; sparse ones are made dense on the CPU, to spare device memory."""
    return gradient.device.type == "cuda" and gradient.layout == torch.strided


def _dense(gradient: Tensor) -> Tensor:
    """This rank's values as a strided tensor."""
    local = local_shard(gradient)
    return local.detach().cpu().to_dense() if local.layout != torch.strided else local


def _finite(values: Tensor) -> bool:
    """Whether all values are finite, without an array of booleans."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) & torch.isfinite(high))
