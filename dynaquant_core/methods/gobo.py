"""GOBO+: outliers of a normal fit kept exact, the rest on K-means centres, each checkpoint on its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import FrozenSettings, require, require_choice, require_number
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.allowance import Allowance
from dynaquant_core.methods.base import Hints, Space, Stream, StreamSource
from dynaquant_core.methods.level_codes import (
    empty_codes,
    level_words,
    read_codes,
    require_coder,
    write_codes,
)
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import TensorMethod
from dynaquant_core.quantize.even import MOST_BINS, host_values
from dynaquant_core.quantize.kmeans.equal_start import fit_equal_start, nearest_centres
from dynaquant_core.quantize.layers import layer_type
from dynaquant_core.quantize.outliers import outliers
from dynaquant_core.state import TensorSpec, copied, empty_words, words_of

__all__ = ["Gobo", "GoboConfig"]

logger = logging.getLogger(__name__)

BINS: Final = (256, 128, 64, 32, 16, 8)
EMBEDDING_BINS: Final = (32, 16)

#: What may code the map of outliers, and outliers.
MAP_CODECS: Final = ("constant", "huffman", "rans", "zstd", "raw")
WORD_CODECS: Final = ("constant", "planes", "raw")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoboConfig(FrozenSettings):
    """One point of the method ``gobo``.

    Args:
        bins: centres of a layer, 2 to 256.
        embedding_bins: centres of an embedding, 2 to 256.
        exact: every tensor is kept bit for bit instead.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> GoboConfig(bins=16).embedding_bins
        32
    """

    bins: int = 256
    embedding_bins: int = 32
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("bins", "embedding_bins"):
            require_number("GoboConfig", name, getattr(self, name), 2, MOST_BINS)
            require(isinstance(getattr(self, name), int), f"GoboConfig: {name} must be a whole number.")
        require_choice("GoboConfig", "exact", self.exact, (False, True))


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A tensor as it is written and as a reader holds it.

    Args:
        far: bool[n], which weights are outliers.
        words: unsigned[outliers], their bits.
        centres: float32[k], k at most 256; none where every weight is an outlier.
        codes: uint8[n - outliers], the centres of the others, below k.
    """

    far: NDArray[np.bool_]
    words: NDArray[Any]
    centres: NDArray[np.float32]
    codes: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What the candidates of one save share.

    Args:
        allowance: seconds of clustering that are left.
        centres: found already, by tensor and number of bins: a candidate drafted again is the same.
    """

    allowance: Allowance
    centres: dict[tuple[str, int], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One candidate: the names of its embeddings, and what it shares with the others."""

    embeddings: frozenset[str]
    shared: Shared


class Gobo(TensorMethod[GoboConfig, Layer, Layer]):
    """The method ``gobo``: GOBO (MICRO'20) under the same search as all others ("GOBO+").

    Card.  Weights whose log-density under their layer's normal fit is below -4 are kept bit for bit; the
    others go to K-means centres, begun from groups of equal population and stopped when an iteration lowers
    the L1 norm by less than a thousandth, or after 1000.  Every checkpoint stands alone.  A layer that is
    what the last one gave, as frozen layers are after a restore, keeps centres and codes.  Lost: the distance
    to the nearest centre.  Cost: a sort of each layer, 16 bytes a weight of the layers at work, and the
    clustering; 1 byte a weight held.

    A save that has clustered for ``time_limit`` seconds (its candidates and threads together) goes on with
    the best centres that each layer has by then, at worst the start's; a warning says so, once.  Until then
    the result does not depend on time.

    Source: arXiv 2306.11800 (the baseline GOBO+) and GOBO, section 4.  Departures: outliers are a map under
    an entropy coder and byte planes, not pairs of position and value.  The rule is a density and so has a
    unit: a layer of standard deviation 21.8 or more is kept whole.  Frozen layers are ours to keep: there
    every save clusters anew, and each restore would add noise that no training takes out.

    Args:
        time_limit: seconds of clustering a save, 0 to 1e9; at 0 the start is all there is.
        coder: ``"packed"`` writes codes of fixed width, as published; ``"huffman"`` is ours.

    Raises:
        ConfigError: an option is of another type or out of range.

    Example:
        >>> import torch
        >>> weights = 0.1 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
        >>> weights[0, 0] = 9.0
        >>> draft = Gobo().draft({"w": weights}, None, GoboConfig(bins=8), Hints())
        >>> dict(draft.decoded)["w"][0, 0]
        tensor(9.)
    """

    name = "gobo"
    point = GoboConfig
    builds_on_base: ClassVar[bool] = False
    keeps_still: ClassVar[bool] = True

    def __init__(self, *, time_limit: float = 1800.0, coder: Literal["packed", "huffman"] = "packed") -> None:
        require_number("method gobo", "time_limit", time_limit, 0.0, 1e9)
        require_coder("method gobo", coder)
        self.time_limit, self.coder = time_limit, coder

    def options(self) -> dict[str, Any]:
        """The time limit and the coder."""
        return {"time_limit": self.time_limit, "coder": self.coder}

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """As published; embeddings are tried on the winner only."""
        return Space(
            build=GoboConfig,
            axes={"bins": BINS},
            variants={},
            refine={"embedding_bins": EMBEDDING_BINS},
            beyond=(GoboConfig(exact=True),),
            default=GoboConfig(),
            rises={"bins": 2.0},  # twice the step, four times the energy
        )

    def plan(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Layer],  # noqa: ARG002
        config: GoboConfig,  # noqa: ARG002
        hints: Hints,
    ) -> Plan:
        """Which tensors are embeddings, and what other candidates of this save left."""
        known = hints.layer_types
        types = {name: known.get(name) or layer_type(name, tuple(state[name].shape)) for name in state}
        fresh = Shared(Allowance(self.time_limit, self._warn), {})
        shared = hints.scratch.setdefault((self.name, "shared"), fresh)
        return Plan(frozenset(name for name, kind in types.items() if kind == "embedding"), shared)

    def code(
        self,
        name: str,
        tensor: Tensor,
        base: Layer | None,  # noqa: ARG002
        config: GoboConfig,
        plan: Plan,
    ) -> Layer:
        """Sets outliers apart, clusters the others, and gives each its nearest centre."""
        values = host_values(tensor)
        far = outliers(values)
        near = values[~far]
        bins = config.embedding_bins if name in plan.embeddings else config.bins
        centres = _centres(near, (name, bins), plan.shared)
        codes = nearest_centres(near, centres) if centres.size else np.empty(0, np.uint8)
        return Layer(far, words_of(tensor)[far], centres, codes)

    def hold(self, coded: Layer) -> Layer:
        """The same."""
        return coded

    def value(self, held: Layer, spec: TensorSpec) -> Tensor:
        """Centres, and the outliers in their places."""
        words = empty_words(spec)
        if held.codes.size:
            words[~held.far] = level_words(held.codes, held.centres, spec)
        words[held.far] = held.words
        return copied(words, spec)

    def write(self, name: str, coded: Layer) -> Iterable[Stream]:
        """``far``; then ``outliers`` and ``centres`` with ``packed`` or ``codes``, where there are any."""
        yield Stream(name, "far", *encode_smallest(np.packbits(coded.far), None, MAP_CODECS))
        if coded.words.size:
            yield Stream(name, "outliers", *encode_smallest(coded.words, None, WORD_CODECS))
        if coded.centres.size:
            yield Stream(name, "centres", *encode_smallest(coded.centres, None, ("raw",)))
            yield write_codes(name, coded.codes, coded.centres.size, self.coder)

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Layer | None) -> Layer:  # noqa: ARG002
        """See `TensorMethod.read`."""
        far = _read_map(source, name, spec)
        words = np.empty(int(far.sum()), empty_words(TensorSpec((0,), spec.dtype)).dtype)
        if words.size:
            decode_stream(source, name, "outliers", words)
        codes = np.empty(far.size - words.size, np.uint8)
        centres = _read_centres(source, name) if codes.size else np.empty(0, np.float32)
        if codes.size:
            read_codes(source, name, codes, centres.size)
        return Layer(far, words, centres, codes)

    def _warn(self) -> None:
        logger.warning(
            "gobo: clustering used up its %g s; centres of this checkpoint are the best found by then "
            "(option time_limit).",
            self.time_limit,
        )


def _centres(near: NDArray[np.float32], key: tuple[str, int], shared: Shared) -> NDArray[np.float32]:
    """Centres of the weights that are not outliers, as found for this key before in the save."""
    if key not in shared.centres:
        go_on = shared.allowance.timer()
        shared.centres[key] = fit_equal_start(np.sort(near), key[1], go_on=go_on)
    return shared.centres[key]


def _read_map(source: StreamSource, name: str, spec: TensorSpec) -> NDArray[np.bool_]:
    """Which elements are outliers, bool[n]."""
    far = empty_codes(spec)  # refuses what the machine has no room for
    packed = np.empty((far.size + 7) // 8, np.uint8)
    decode_stream(source, name, "far", packed)
    far[:] = np.unpackbits(packed, count=far.size)
    return far.view(np.bool_)


def _read_centres(source: StreamSource, name: str) -> NDArray[np.float32]:
    """As many centres as the stream holds, 1 to 256, all finite."""
    _, payload = source.get(name, "centres")
    centres = np.empty(len(payload) // 4, np.float32)
    if not 1 <= centres.size <= MOST_BINS:
        raise CorruptFileError(f"Tensor {name!r} has {centres.size} centres; load another checkpoint.")
    decode_stream(source, name, "centres", centres)
    if not np.isfinite(centres).all():
        raise CorruptFileError(f"Tensor {name!r} has centres that are not finite; load another checkpoint.")
    return centres
