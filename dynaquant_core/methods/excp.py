"""The method ``excp``: changes of weights and the moments beside them, pruned together, a few values each.

What is kept of a moment depends on its weight, so one method owns both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import codec_by_name, encode_smallest
from dynaquant_core.config import FrozenSettings, require, require_number
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Hints, Space, Stream, StreamSource
from dynaquant_core.methods.excp_plan import Kept, floats_of, what_is_kept
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import TensorMethod, expect_base
from dynaquant_core.methods.words import Plain, plain_of
from dynaquant_core.quantize.change import moved
from dynaquant_core.quantize.flat import FLOATS
from dynaquant_core.quantize.packing import pack, packed_bytes, unpack
from dynaquant_core.quantize.survivors import centre_codes, centre_values
from dynaquant_core.state import TensorSpec, dtype_of, empty_words

__all__ = ["Excp", "ExcpConfig"]

#: Stream of codes -> (whether they are of a change since the base, bits a code).
CODES: Final = {"change4": (True, 4), "change2": (True, 2), "moment4": (False, 4), "moment2": (False, 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcpConfig(FrozenSettings):
    """One point.

    Args:
        bits: 4 (15 centres and zero) or 2 (3 and zero); ``"exact"`` keeps every bit.
        alpha: how much of a change is pruned, in multiples of the published 5e-5; 0 prunes nothing.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> ExcpConfig.from_dict({"bits": 2}).exact
        False
    """

    bits: Literal[4, 2, "exact"] = 4
    alpha: float = 1.0

    def __post_init__(self) -> None:
        good = (type(self.bits), self.bits) in ((int, 4), (int, 2), (str, "exact"))
        require(good, f"ExcpConfig: bits must be 4, 2 or 'exact', got {self.bits!r}.")
        require_number("ExcpConfig", "alpha", self.alpha, 0.0, 1e6)

    @property
    def exact(self) -> bool:
        """Whether every tensor is kept as it is."""
        return self.bits == "exact"


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor that was coded.

    Args:
        kind: of its stream, a key of `CODES`.
        codes: uint8[n]; 0 = pruned.
        centres: float32[2^bits - 1].
        tensor: what a reader gets, on the CPU.
    """

    kind: str
    codes: NDArray[np.uint8]
    centres: NDArray[np.float32]
    tensor: Tensor


class Excp(TensorMethod[ExcpConfig, Coded, Tensor]):
    """ExCP (arXiv 2406.11257, sec. 3, thresholds as in its code).

    Card: the change dW of a weight since what a reader holds is kept where it is above
    min(2.5, alpha / sqrt(mean v)) medians of its magnitudes, v the second moment; both moments are kept where
    dW is and the first is above twice its mean magnitude.  What is kept becomes one of 15 (or 3) K-means
    centres; codes are packed and put through LZMA, which is what a candidate takes its time for.  A key
    checkpoint keeps weights bit for bit and prunes moments alone.  Moments that are not kept are lost: most
    of both, in places where the first is small.  Without second moments (SGD, a bare tree) dW is pruned at
    alpha medians.

    Departures: K-means is exact, on values known to 0.8%; centres are float32, since float16 turns small
    second moments into zero; factored moments, and what centred RMSprop subtracts, stay as they are; second
    moments beside which no Adam keeps a first are not pruned.

    Example:
        >>> from dynaquant_core.methods.base import Hints
        >>> method, state = Excp(), {"w": torch.linspace(-1, 1, 4096).reshape(64, 64)}
        >>> _, base = method.draft(state, None, ExcpConfig(), Hints()).encode()
        >>> method.draft({"w": state["w"] * 1.01}, base, ExcpConfig(), Hints()).size < 2048
        True
    """

    name = "excp"
    point = ExcpConfig
    owns = frozenset({"weight", "moment"})

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002 - it never looks at them
        """Bits and alpha; beyond them, nothing pruned of the weights, then everything bit for bit.

        A larger alpha is always fewer bytes.  With few centres a little pruning also brings them nearer to
        what is left, so that quality falls only from there on.
        """
        return Space(
            build=ExcpConfig,
            axes={"bits": (4, 2), "alpha": (0.25, 0.5, 1.0, 2.0, 4.0)},
            variants={},
            refine={},
            beyond=(ExcpConfig(alpha=0.0), ExcpConfig(bits="exact")),
            default=ExcpConfig(),
        )

    def plan(
        self, state: Mapping[str, Tensor], base: Mapping[str, Tensor], config: ExcpConfig, hints: Hints
    ) -> Mapping[str, Kept]:
        """What is kept of each weight that has a base, and of its moments."""
        return what_is_kept(state, base, config.alpha, hints)

    def code(
        self, name: str, tensor: Tensor, base: Tensor | None, config: ExcpConfig, plan: Mapping[str, Kept]
    ) -> Coded | Plain:
        """Codes the change of a weight, or a moment; what the plan does not name is kept bit for bit."""
        if name not in plan or config.bits == "exact":
            return plain_of(tensor, bf16=False)
        below = expect_base(base, name) if plan[name].is_change else None
        values = floats_of(tensor) if below is None else moved(tensor, below)
        codes, centres = centre_codes(values, plan[name].mask, 2**config.bits - 1)
        kind = f"{'moment' if below is None else 'change'}{config.bits}"
        spec = TensorSpec.of(tensor)
        return Coded(kind, codes, centres, _tensor(centre_values(codes, centres), spec, below))

    def hold(self, coded: Coded) -> Tensor:
        """The values."""
        return coded.tensor

    def value(self, held: Tensor, spec: TensorSpec) -> Tensor:  # noqa: ARG002 - it has its shape
        """A copy."""
        return held.clone()

    def adopt(self, tensor: Tensor) -> Tensor:
        """What was kept bit for bit is as good a base."""
        return tensor

    def write(self, name: str, coded: Coded) -> Iterable[Stream]:
        """Packed codes and their centres."""
        packed = pack(coded.codes, CODES[coded.kind][1])
        codec = codec_by_name("lzma" if packed.any() else "constant")
        yield Stream(name, coded.kind, codec.id, codec.encode(packed))
        yield Stream(name, "centres", *encode_smallest(coded.centres, None, ("raw", "constant")))

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Tensor | None) -> Tensor:
        """Reads one tensor; see `TensorMethod.read`."""
        kind = next((kind for kind in CODES if source.has(name, kind)), None)
        if kind is None or dtype_of(spec.dtype) not in FLOATS:
            raise CorruptFileError(
                f"The tensor {name!r} ({spec.dtype}) has no codes that excp writes for it."
            )
        is_change, bits = CODES[kind]
        packed = empty_words(TensorSpec((packed_bytes(spec.numel, bits),), "uint8"))
        centres = np.empty(2**bits - 1, np.float32)
        decode_stream(source, name, kind, packed)
        decode_stream(source, name, "centres", centres)
        if not np.isfinite(centres).all():
            raise CorruptFileError(f"A centre of the tensor {name!r} is not a finite number.")
        below = expect_base(base, name) if is_change else None
        return _tensor(centre_values(unpack(packed, spec.numel, bits), centres), spec, below)


def _tensor(values: NDArray[np.float32], spec: TensorSpec, base: Tensor | None) -> Tensor:
    """Values, on top of the base where there is one, in the tensor's own dtype and always finite."""
    dtype = dtype_of(spec.dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = torch.from_numpy(values).to(wide).view(spec.shape)
    if base is not None:
        found = found + base.to(wide)
    limit = torch.finfo(dtype).max
    return found.clamp(-limit, limit).to(dtype)
