"""The one line: ``smaq.apply(model, optimizer)`` codes what a training holds, until the handle is removed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from dynaquant_core.config import require, require_choice
from dynaquant_core.hooks import leave, take_off_what_was_left
from dynaquant_core.memory.smaq.alike import Alike
from dynaquant_core.memory.smaq.around_step import attach_step
from dynaquant_core.memory.smaq.coder import Coder
from dynaquant_core.memory.smaq.foreign import require_tellable
from dynaquant_core.memory.smaq.format import Format, require_generator
from dynaquant_core.memory.smaq.formats import make_format
from dynaquant_core.memory.smaq.maps import attach_maps
from dynaquant_core.memory.smaq.saved import SavedMaps
from dynaquant_core.state.compressed import is_compressed

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FeatureMaps", "Handle", "apply"]

logger = logging.getLogger(__name__)

FeatureMaps = Literal["saved", "inline"]

Optimizers = Optimizer | Iterable[Optimizer] | Mapping[str, Optimizer]

#: What is coded already, and by which handle: a second one would round what the first has rounded.  Handles
#: hold what they code, so a strong one here would keep that alive for ever.
_applied: WeakKeyDictionary[Any, ReferenceType[Handle]] = WeakKeyDictionary()


class Handle:
    """What `apply` returns.  Its state belongs into checkpoints: ``Checkpointer(extra={"smaq": handle})``."""

    def __init__(self, coder: Coder, saved: SavedMaps | None, hooks: list[Any], subjects: list[Any]) -> None:
        self._coder, self._saved, self._hooks, self._subjects = coder, saved, hooks, subjects

    def report(self) -> dict[str, Any]:
        """What was coded since the beginning, and what packed feature maps take in memory.

        Returns:
            For each role that was met ("saved", "map", "gradient map", "gradient", "weight", "state") the
            counts of `Tally` and ``benefit``, raw over stored bytes; under "memory" the bytes of packed
            feature maps: ``live`` and ``peak``, and ``live_raw`` and ``peak_raw``, what autograd would hold:
            the memory behind them, each piece once however many saved tensors look at it.
        """
        found: dict[str, Any] = {}
        for role, tally in self._coder.tallies.items():
            found[role] = {
                "tensors": tally.tensors,
                "raw_bytes": tally.raw_bytes,
                "stored_bytes": tally.stored_bytes,
                "not_finite": tally.not_finite,
                "benefit": tally.raw_bytes / tally.stored_bytes if tally.stored_bytes else None,
            }
        if self._saved is not None:
            ledger = self._saved.ledger
            found["memory"] = {
                name: getattr(ledger, name) for name in ("live", "peak", "live_raw", "peak_raw")
            }
        return found

    @contextmanager
    def packing(self, batch: Any = None) -> Iterator[None]:
        """Packs what autograd saves inside, where a loop does not call the model itself (Lightning's step).

        Args:
            batch: a tree of tensors that live anyway and are left alone.

        Raises:
            ConfigError: feature maps are not packed by this handle.
        """
        require(self._saved is not None, 'SmaQ: packing() takes apply(feature_maps="saved").')
        assert self._saved is not None
        with self._saved.packing(batch):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Random stream, statistics in use and counters; a run that takes it goes on bit for bit."""
        return self._coder.state_dict()

    def check_state_dict(self, state: Any) -> None:
        """Raises what `load_state_dict` would raise, and touches nothing."""
        self._coder.check_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave.

        Raises:
            StateMismatchError: it is none, or of another format; nothing was changed.
        """
        self._coder.load_state_dict(state)

    def reseed(self, seed: int) -> None:
        """Begins another random stream, for loops that number their steps instead of storing the state.

        Args:
            seed: the same on every rank of a data-parallel training; of a DDP model's ranks others are a
                StateMismatchError at the next step, but from the first `join()` on.

        Raises:
            ConfigError: it is no whole number from -2^63 to 2^64 - 1.
        """
        self._coder.reseed(seed)

    def leave(self) -> None:
        """Codes nothing from now on, and has the hooks taken off before the next `apply`.

        For the garbage collector, which may come while torch goes through the hooks.
        """
        self._coder.rest()
        leave(self)

    def remove(self) -> None:
        """Takes all hooks off; what was packed can still be unpacked.  Again: does nothing."""
        for hook in self._hooks:
            hook.remove()
        for subject in self._subjects:
            if subject in _applied and _applied[subject]() is self:
                del _applied[subject]
        self._hooks, self._subjects = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def apply(
    model: nn.Module,
    optimizer: Optimizers | None = None,
    *,
    feature_maps: FeatureMaps | None = "saved",
    gradient_maps: bool = True,
    gradients: bool = True,
    weights: bool = True,
    optimizer_state: bool = True,
    format: str | Mapping[str, Any] | Format = "smaq",  # noqa: A002 - the word that users look for
    generator: torch.Generator | None = None,
    reuse: int = 0,
    smallest: int = 1024,
) -> Handle:
    """Codes what a training holds, in SmaQ or a format it is compared with (IEEE CAL 2021).

    Only training forwards with gradients are touched; evaluation is as ever.  Tensors that are small, sparse,
    not floating or not finite stay as they are.

    Args:
        model: what is trained; its own ``model(...)`` is called, wrapped (DDP) or not.
        optimizer: one or several; may be None where nothing of it is coded.  One that holds none of the
            model's parameters is coded too (master copies), and a warning says so.
        feature_maps: ``"saved"``: what autograd keeps for backward is kept as packed bytes, and memory falls;
            the forward pass is exact, but for a derivative that it takes itself (forces of an energy).
            ``"inline"``: each layer sees the decoded output of the one before, as
            published; memory stays.  None: neither.
        gradient_maps: the gradient of each layer's output is coded, but where SmaQ's clamp would cut off a
            real share of it, as of a classifier's logits.
        gradients: gradients are coded before the step.
        weights: weights are coded after it.
        optimizer_state: running averages are coded after it.
        format: a name of `FORMATS`, a mapping of name and settings, or a format.
        generator: on the CPU; what is drawn comes from it.  None: one of its own, seeded with 0, so that the
            training's random streams stay as they are.  The same seed on every rank; of a DDP model's ranks
            others are a StateMismatchError at the first step, unless that is under `join()`.
        reuse: how many further times a tensor's statistics serve its place before they are taken again.
        smallest: tensors of fewer values stay as they are.

    Returns:
        The handle: `Handle.remove`, or ``with``, ends it.

    Raises:
        ConfigError: an argument is of the wrong type or out of range; model or optimizer are coded already,
            or a part of the model, or what it is a part of; weights are to be coded of a model that is under
            `samo.wrap`.
        DependencyError: maps are to be packed, and torch (2.14) does not let it be seen what may not be.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with apply(net, optimizer) as handle:
        ...     net(torch.randn(256, 64)).square().mean().backward()
        ...     optimizer.step()
        >>> handle.report()["saved"]["benefit"] > 5
        True
    """
    optimizers = _named(optimizer)
    _require_arguments(model, optimizers, feature_maps, reuse, smallest)
    switches = (gradient_maps, gradients, weights, optimizer_state)
    for name, value in zip(
        ("gradient_maps", "gradients", "weights", "optimizer_state"), switches, strict=True
    ):
        require_choice("SmaQ", name, value, (True, False))
    around = gradients or weights or optimizer_state
    require(
        bool(optimizers) or not around,
        "SmaQ: gradients, weights and optimizer_state take the optimizer; give it, or turn them off.",
    )
    if feature_maps == "saved":
        require_tellable()
    take_off_what_was_left()
    stream = torch.Generator().manual_seed(0) if generator is None else generator
    require_generator(stream)
    coder = Coder(make_format(format), stream, reuse, smallest)
    subjects = [model, *(optimizers.values() if around else ())]
    _require_free(subjects)
    require(
        not (weights and is_compressed(model)),
        "SmaQ: the model is under samo.wrap, which writes weights from vectors of its own, so it would go on "
        "with uncoded ones; call smaq.apply before samo.wrap, or give weights=False.",
    )
    _warn_of_strangers(model, optimizers)
    saved = SavedMaps(model, coder) if feature_maps == "saved" else None
    hooks = [] if saved is None else saved.attach()
    if feature_maps == "inline" or gradient_maps:
        hooks += attach_maps(model, coder, features=feature_maps == "inline", gradients=gradient_maps)
    alike = Alike(model, coder)
    for name, one in optimizers.items():
        hooks += attach_step(
            one, coder, alike, name=name, gradients=gradients, weights=weights, state=optimizer_state
        )
    handle = Handle(coder, saved, hooks, subjects)
    _applied.update(dict.fromkeys(subjects, ref(handle)))
    return handle


def _named(optimizer: Optimizers | None) -> dict[str, Any]:
    if optimizer is None:
        return {}
    if isinstance(optimizer, Optimizer):
        return {"": optimizer}
    if isinstance(optimizer, Mapping):
        return {f"{name}.": one for name, one in optimizer.items()}
    require(isinstance(optimizer, Iterable), f"SmaQ: {type(optimizer).__name__} is no torch.optim.Optimizer.")
    return {f"{index}.": one for index, one in enumerate(optimizer)}


def _require_arguments(
    model: Any, optimizers: Mapping[str, Any], feature_maps: Any, reuse: Any, smallest: Any
) -> None:
    require(isinstance(model, nn.Module), f"SmaQ: model must be a module, got {type(model).__name__}.")
    lazy = [name for name, one in model.named_parameters() if is_lazy(one)]
    require(
        not lazy,
        f"SmaQ: parameter {(lazy or [''])[0]!r} has no shape yet (a lazy module); call the model on a batch "
        "first.",
    )
    for one in optimizers.values():
        good = isinstance(one, Optimizer)
        require(good, f"SmaQ: {type(one).__name__} is no torch.optim.Optimizer.")
        require(
            hasattr(one, "_optimizer_step_pre_hooks"),
            f"SmaQ: {type(one).__name__} wraps an optimizer and calls no hooks itself; give the one inside "
            f"(Accelerate: .optimizer).",
        )
    require_choice("SmaQ", "feature_maps", feature_maps, ("saved", "inline", None))
    for name, value, least in (("reuse", reuse, 0), ("smallest", smallest, 1)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        require(whole, f"SmaQ: {name} must be a whole number from {least}, got {value!r}.")


def _warn_of_strangers(model: nn.Module, optimizers: Mapping[str, Any]) -> None:
    """Copies that a loop keeps of the weights are strangers too, so nothing is refused."""
    if is_compressed(model):  # whose optimizer holds vectors in place of the parameters
        return
    own = set(map(id, model.parameters()))
    for one in optimizers.values():
        held = [parameter for group in one.param_groups for parameter in group["params"]]
        if own.isdisjoint(map(id, held)):
            logger.warning(
                "SmaQ: none of the %d parameters of this %s is one of the model's; is it another model's?",
                len(held),
                type(one).__name__,
            )


def _require_free(subjects: list[Any]) -> None:
    for number, subject in enumerate(subjects):
        require(
            all(subject is not other for other in subjects[:number]),
            f"SmaQ: this {type(subject).__name__} is given twice; name each optimizer once.",
        )
        require(
            subject not in _applied,
            f"SmaQ: this {type(subject).__name__} is coded already; remove() the first apply()'s handle, or "
            f"build it anew where nobody has kept that.",
        )
    model = subjects[0]
    for other in [one for one in _applied if isinstance(one, nn.Module)]:
        nested = other in set(model.modules()) or model in set(other.modules())
        require(
            not nested,
            f"SmaQ: this {type(model).__name__} and a {type(other).__name__} that is coded already are one "
            f"inside of the other; code the outer one only, or remove() the first apply()'s handle.",
        )
