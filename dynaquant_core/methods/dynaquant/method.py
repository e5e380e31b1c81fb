"""The method ``dynaquant`` behind the protocol: draft, decode, search space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.config import Config, DynaQuantOptions
from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.base import Draft, Hints, Reference, Space, Stream, StreamSource
from dynaquant_core.methods.dynaquant.books import Bookshelf
from dynaquant_core.methods.dynaquant.decode import decode_streams
from dynaquant_core.methods.dynaquant.dithered import epoch_of
from dynaquant_core.methods.dynaquant.draft import CodesDraft
from dynaquant_core.methods.dynaquant.held import Held
from dynaquant_core.methods.dynaquant.plain import PlainDraft
from dynaquant_core.methods.dynaquant.rekey import rekey_streams
from dynaquant_core.methods.dynaquant.survey import Survey
from dynaquant_core.state.roles import is_quantisable

__all__ = ["DynaQuant"]

#: A matrix whose values span less than this many buckets' widths is kept exactly.
NARROW = 2
#: Values that are looked at first.
LOOK = 1 << 12


class DynaQuant:
    """DynaQuant (arXiv 2306.11800, sec. 4-6), with exact K-means and a context coder by default.

    Args:
        **options: fields of `config.DynaQuantOptions`.

    Raises:
        ConfigError: an option is unknown or out of range.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> method = DynaQuant(sigma=0.2)
        >>> state = {"w": torch.linspace(-1, 1, 4096).reshape(64, 64)}
        >>> draft = method.draft(state, None, Config(bins=16), Hints())
        >>> draft.is_key, draft.size < 4096
        (True, True)
    """

    name = "dynaquant"
    owns = frozenset({"weight"})

    def __init__(self, **options: Any) -> None:
        self._options = DynaQuantOptions.from_dict(options)

    def __repr__(self) -> str:
        return f"DynaQuant({', '.join(f'{key}={value!r}' for key, value in self.options().items())})"

    def options(self) -> dict[str, Any]:
        """Its options as JSON-ready data."""
        return self._options.as_dict()

    def config(self, data: Mapping[str, Any]) -> Config:
        """Rebuilds a point of the cube from `Config.as_dict`."""
        return Config.from_dict(data)

    def space(self, *, gradients: bool) -> Space:
        """The cube of paper 5.1, the embedding axis, and what lies beyond."""
        metrics = ("magnitude", "sensitivity") if gradients else ("magnitude",)
        careful: dict[str, Any] = {"protect": 0.01, "embedding_bins": 64}
        return Space(
            build=point,
            axes={
                "bins": (32, 16, 12, 8, 6, 4),
                "protect": (0.01, 0.005, 0.0005),
                "prune": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
            },
            variants={"prune_metric": metrics},
            refine={"embedding_bins": (32, 16)},
            beyond=(
                Config(bins=48, **careful),
                Config(bins=64, **careful),
                Config(bins="bf16"),
                Config(bins="exact"),
            ),
            default=Config(bins=32, protect=0.005),
        )

    def accepts(self, tensor: Tensor) -> bool:
        """Floating matrices of at least 256 finite elements; the rest is stored exactly.

        So is a matrix that lies within two buckets (`is_narrow`), as one of ones does: its codes would tell
        next to nothing of it.  What is accepted may still be kept in words by a draft, where codes would tell
        too little (`book.ERROR_CAP`).  Published: both are coded like the others.
        """
        options = self._options
        narrow = 0.0 if options.profile == "paper" else NARROW * 2.0**-options.mantissa_bits
        return is_quantisable(tensor) and not (narrow and is_narrow(tensor, narrow))

    def draft(self, state: Mapping[str, Tensor], ref: Reference | None, config: Any, hints: Hints) -> Draft:
        """Drafts ``state`` under ``config`` against ``ref``.

        Raises:
            ConfigError: pruning by sensitivity was asked for and there are no gradients.
        """
        base = held_or_none(ref)
        epoch = epoch_of(base or held_or_none(hints.before), self._options)
        if config.bins in ("bf16", "exact"):
            return PlainDraft(config, state, base, "tensor" if base is None else base.scope, epoch)
        survey = self._survey(state, base, hints, epoch)
        if config.prune > 0 and config.prune_metric == "sensitivity" and not survey.gradients:
            message = (
                "Config: prune_metric='sensitivity' needs gradients; pass gradients= or prune by magnitude."
            )
            raise ConfigError(message)
        choice = Bookshelf(survey, config, self._options).choose()
        return CodesDraft(
            config,
            survey,
            survey.cuts(config),
            choice.books,
            scope=choice.scope,
            shared=choice.shared,
            ref=base,
            options=self._options,
        )

    def _survey(
        self, state: Mapping[str, Tensor], base: Held | None, hints: Hints, epoch: int | None
    ) -> Survey:
        """The survey of this save, made once for drafts with and once for drafts without a base."""
        surveys: dict[bool, Survey] = hints.scratch.setdefault((self.name, "survey"), {})
        keyed = base is None
        if keyed not in surveys:
            other = surveys.get(not keyed)
            surveys[keyed] = Survey(state, base, hints, self._options, epoch=epoch, sketches_of=other)
        return surveys[keyed]

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> Held:
        """Turns streams back into codes; see `methods.base.Method.decode`."""
        return decode_streams(streams, held_or_none(ref), names)

    def rekey(self, reference: Reference) -> Iterable[Stream]:
        """What a reader holds, as the streams of a key checkpoint; stores ask for it to shorten a chain."""
        held = held_or_none(reference)
        assert held is not None
        return rekey_streams(held, self._options.coder)


def is_narrow(tensor: Tensor, share: float) -> bool:
    """Whether all values lie within a share of the largest magnitude; not where all are zero.

    Example:
        >>> is_narrow(torch.tensor([[1.0, 1.01]]), 0.03), is_narrow(torch.tensor([[1.0, 1.1]]), 0.03)
        (True, False)
    """
    tensor = tensor.detach()
    largest = 0.0
    for part in (tensor[(0,) * (tensor.dim() - 1)][:LOOK], tensor):  # of most, a few values tell
        low, high = (float(end) for end in torch.aminmax(part))
        largest = max(abs(low), abs(high))
        if high - low > share * largest:
            return False
    return largest > 0.0


def point(**axes: Any) -> Config:
    """A point of the cube; without pruning its metric means nothing, so that both metrics share the point.

    Embeddings have the first number of their axis unless the axis is what is tried.
    """
    told = axes if axes["prune"] > 0 else {**axes, "prune_metric": "magnitude"}
    return Config(**{"embedding_bins": 32, **told})


def held_or_none(ref: Reference | None) -> Held | None:
    """The reference as this method's own type; raises TypeError for another method's."""
    if ref is None or isinstance(ref, Held):
        return ref
    raise TypeError(f"dynaquant was given a {type(ref).__name__} as its reference.")
