"""The method ``lattice`` behind the protocol: draft, decode, search space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, log2
from typing import Any

from torch import Tensor

from dynaquant_core.config import LatticeConfig, LatticeOptions, Scale
from dynaquant_core.methods.base import Draft, Healing, Hints, Reference, Space, Stream, StreamSource
from dynaquant_core.methods.lattice.bound import Bound
from dynaquant_core.methods.lattice.decode import decode_streams
from dynaquant_core.methods.lattice.draft import LatticeDraft
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.plan import plan, plan_beyond
from dynaquant_core.methods.lattice.rekey import rekey_streams
from dynaquant_core.state.roles import has_range, is_quantisable

__all__ = ["Lattice"]

#: The boldest scale tried, how much finer each next one is, and how many there are (down to 0.02).
BOLDEST, RATIO, SCALES = 8.0, 0.88, 48
#: Scales above so many times the widest step change little: most bounded tensors have it already.
NARROW = 2.0
#: What noise a search may add; docs/healing.md says on which runs it was measured.
HEALING = Healing(least=5.0, remains=0.5, most=100.0)


class Lattice:
    """Dithered lattices: noise without a direction, so that a restore loses no progress (ours).

    Weights are whole numbers of steps on a grid whose offsets are drawn anew after every restore
    (`quantize.lattice`).  Nothing is pruned, protected or rounded towards zero.

    Args:
        **options: fields of `config.LatticeOptions`.

    Raises:
        ConfigError: an option is unknown or out of range.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> method = Lattice()
        >>> state = {"w": torch.linspace(-1, 1, 4096).reshape(64, 64)}
        >>> draft = method.draft(state, None, LatticeConfig(scale=0.5), Hints())
        >>> draft.is_key, draft.size < 2048
        (True, True)
    """

    name = "lattice"
    owns = frozenset({"weight"})
    spares_gradients = True

    def __init__(self, **options: Any) -> None:
        self._options = LatticeOptions.from_dict(options)
        widest = inf if self._options.max_step is None else self._options.max_step
        most = HEALING.most if self._options.max_noise == "auto" else self._options.max_noise or inf
        self._bound = Bound(widest, everywhere=self._options.max_step_of == "all", noise=most)

    def __repr__(self) -> str:
        return f"Lattice({', '.join(f'{key}={value!r}' for key, value in self.options().items())})"

    def options(self) -> dict[str, Any]:
        """Its options as JSON-ready data, where they are not the default."""
        return self._options.as_dict()

    def config(self, data: Mapping[str, Any]) -> LatticeConfig:
        """Rebuilds a point from `LatticeConfig.as_dict`."""
        return LatticeConfig.from_dict(data)

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002 - steps know without
        """One axis of scales, and what lies beyond."""
        scales = tuple(round(BOLDEST * RATIO**number, 6) for number in reversed(range(SCALES)))
        beyond: tuple[Scale, ...] = (0.01, 0.003, "bf16", "exact")
        return Space(
            build=scale_point,
            axes={"scale": scales},
            variants={},
            refine={},
            beyond=tuple(LatticeConfig(scale=scale) for scale in beyond),
            default=LatticeConfig(),
            rises={"scale": -2 * log2(RATIO)},  # noise grows with the square of the step
            near=8,
            max_noise=HEALING if self._options.max_noise == "auto" else self._options.max_noise,
            by_learnt=self._options.max_noise == "auto",
        )

    def fitted(self, space: Space, state: Mapping[str, Tensor], hints: Hints) -> Space:
        """Without the scales at which nearly every step is at its bound; see `methods.base.FitsSpace`."""
        widest = self._bound.usual(state, hints)
        scales = space.axes["scale"]
        low = tuple(scale for scale in scales if scale <= NARROW * widest)
        return replace(space, axes={"scale": low or scales[:1]})

    def accepts(self, tensor: Tensor) -> bool:
        """Floating matrices of at least 256 finite elements; the rest is stored exactly."""
        return is_quantisable(tensor)

    def accepts_vector(self, tensor: Tensor) -> bool:
        """Any tensor with a range that an optimizer trains: its steps follow from its own moments."""
        return tensor.numel() > 1 and has_range(tensor)

    def draft(self, state: Mapping[str, Tensor], ref: Reference | None, config: Any, hints: Hints) -> Draft:
        """Drafts ``state`` under ``config`` against ``ref``."""
        base = ref if isinstance(ref, Held) else None
        if isinstance(config.scale, str):
            return LatticeDraft(config, state, base, plan_beyond(state, base, hints))
        bound = replace(self._bound, scale=config.scale)
        goes = plan(state, base, config.scale, hints, bound, keep_norm=self._options.keep_norm)
        return LatticeDraft(config, state, base, goes)

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> Reference:
        """Turns streams back into cells.

        Raises:
            CorruptFileError: the streams are not what this method writes.
            MissingBaseError: they stand on a base that is not given.
        """
        return decode_streams(streams, ref if isinstance(ref, Held) else None, names)

    def rekey(self, reference: Reference) -> Iterable[Stream]:
        """Streams of a key checkpoint that decodes to what ``reference`` holds."""
        if not isinstance(reference, Held):
            raise TypeError(f"lattice: rekey takes what lattice decoded, got {type(reference).__name__}.")
        return rekey_streams(reference)


def scale_point(scale: float) -> LatticeConfig:
    """The point of a scale."""
    return LatticeConfig(scale=scale)
