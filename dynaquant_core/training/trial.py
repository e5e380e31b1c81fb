"""Measuring what a reader would get: candidates are put into the live model and taken out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from dynaquant_core.search.quality import Quality
from dynaquant_core.state import copied_together
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.guard import insist, written_in_passing
from dynaquant_core.training.held import same_bits, write

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Trial"]


class Trial:
    """Evaluates candidates in the live tensors; every measurement leaves them as they were, bit for bit.

    A Ctrl-C does not change that, wherever it lands: it is raised when the tensors are back.  A save between
    a forward pass and its backward pass leaves both as they are.
    There is one copy of the tensors while the context is open, on the CPU for those of a device, whose memory
    may be full.

    Args:
        live: the tensors to write candidates into, by name: those of the model itself.
        evaluation: measures the model as it is.

    Example:
        >>> layer = torch.nn.Linear(1, 1, bias=False)
        >>> live = {"weight": layer.weight.detach()}
        >>> before = float(layer.weight.detach())
        >>> with Trial(live, Evaluation(lambda: float(layer.weight), layer)) as trial:
        ...     trial.measure([("weight", torch.tensor([[2.0]]))])
        Quality(values=(2.0,), lost=None)
        >>> float(layer.weight.detach()) == before
        True
    """

    def __init__(self, live: Mapping[str, Tensor], evaluation: Evaluation) -> None:
        self._live = live
        self._evaluation = evaluation
        self._originals: dict[str, Tensor] = {}
        self._beside: list[tuple[Tensor, Tensor]] = []
        self._changed = False  # the live tensors may hold something else than the originals

    def __enter__(self) -> Self:
        with torch.no_grad():
            self._originals = copied_together(self._live)
            live = {tensor.data_ptr() for tensor in self._live.values()}
            self._beside = [
                (weight, weight.detach().to("cpu", copy=True))
                for weight in written_in_passing(self._evaluation.models)
                if weight.data_ptr() not in live
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._changed:  # the put-back after a measurement was interrupted
            insist(self._put_back)
        self._originals, self._beside = {}, []

    def reference(self) -> Quality:
        """The quality of the tensors as they are; raises EvaluationError as `Evaluation` does."""
        return self.measure(())

    def measure(self, decoded: Iterable[tuple[str, Tensor]]) -> Quality:
        """The quality with ``decoded`` in place of the live tensors.

        Args:
            decoded: (name, tensor) of `live`'s shapes and dtypes, taken one at a time.

        Raises:
            EvaluationError: evaluate raised, or returned something else than numbers.
        """
        self._changed = True
        try:
            self._put(decoded)
            return self._evaluation()
        finally:  # also where evaluate, or a draft half way, fails
            insist(self._put_back)

    def _put_back(self) -> None:
        self._put(self._originals.items())
        with torch.no_grad():
            for weight, value in self._beside:
                if not same_bits(weight.cpu(), value):
                    with _unnoticed(weight):
                        write(weight, value)
        self._changed = False

    def _put(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        with torch.no_grad():
            for name, tensor in tensors:
                with _unnoticed(self._live[name]):
                    write(self._live[name], tensor)


def _unnoticed(tensor: Tensor) -> AbstractContextManager[None]:
    """Lets autograd think that nobody wrote: a backward pass that is due finds what its forward pass used."""
    if tensor.is_inference():
        return nullcontext()
    keeping: AbstractContextManager[None] = _unsafe_preserve_version_counter(tensor)
    return keeping
