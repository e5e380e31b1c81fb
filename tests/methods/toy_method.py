"""A method as a stranger would write it after CONTRIBUTING.md: weights rounded to multiples of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import known_keys, require_number
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods import Space, Stream, StreamSource, TensorSpec
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import TensorMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One point: a step in mean magnitudes; 0 is exact."""

    step: float = 0.1

    def __post_init__(self) -> None:
        require_number("Step", "step", self.step, 0.0, 10.0)

    @property
    def exact(self) -> bool:
        return self.step == 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rounded:
    codes: NDArray[np.int8]
    unit: NDArray[np.float64]


class Rounding(TensorMethod[Step, Rounded, Rounded]):
    name = "rounding"
    builds_on_base = False

    def __init__(self, *, reach: int = 127) -> None:
        require_number("method rounding", "reach", reach, 1, 127)
        self.reach = reach

    def options(self) -> dict[str, Any]:
        return {"reach": self.reach}

    def config(self, data: Mapping[str, Any]) -> Step:
        return Step(**known_keys(Step, data))

    def space(self, *, gradients: bool) -> Space:
        return Space(
            build=Step,
            axes={"step": (0.05, 0.2, 0.8)},
            variants={},
            refine={},
            beyond=(Step(step=0.0),),
            default=Step(),
        )

    def code(self, name: str, tensor: Tensor, base: Rounded | None, config: Step, plan: Any) -> Rounded:
        values = tensor.detach().double().cpu().numpy().ravel()
        unit = np.abs(values).mean(keepdims=True) * config.step
        codes = np.rint(values / np.maximum(unit, 1e-300)).clip(-self.reach, self.reach)
        return Rounded(codes.astype(np.int8), unit)

    def hold(self, coded: Rounded) -> Rounded:
        return coded

    def value(self, held: Rounded, spec: TensorSpec) -> Tensor:
        dtype = getattr(torch, spec.dtype)
        limit = torch.finfo(dtype).max
        return torch.from_numpy(held.codes * held.unit).clamp(-limit, limit).view(spec.shape).to(dtype)

    def write(self, name: str, coded: Rounded) -> Iterable[Stream]:
        yield Stream(name, "codes", *encode_smallest(coded.codes.view(np.uint8)))
        yield Stream(name, "unit", *encode_smallest(coded.unit, None, ("raw",)))

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Rounded | None) -> Rounded:
        codes, unit = np.empty(spec.numel, np.uint8), np.empty(1)
        decode_stream(source, name, "codes", codes)
        decode_stream(source, name, "unit", unit)
        if not np.isfinite(unit).all() or abs(float(unit[0])) > 1e300:
            raise CorruptFileError(f"The unit of {name!r} is no number.")
        return Rounded(codes.view(np.int8), unit)
