"""What a wrapped training holds, measured, beside the paper's formula."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dynaquant_core.config import require
from dynaquant_core.memory.samo.engine import Engine
from dynaquant_core.memory.samo.formula import TERMS, dense_bytes, samo_bytes
from dynaquant_core.memory.samo.swap import moments_of
from dynaquant_core.memory.samo.wrap import Samo

__all__ = ["MemoryReport", "Term", "memory_report"]


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the formula.

    Args:
        name: of `formula.TERMS`.
        formula: bytes that it says.
        measured: bytes of the tensors' memory, each piece once.
    """

    name: str
    formula: int
    measured: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """A training state in bytes.

    Args:
        parameters: trained ones, pruned ones included.
        kept: of them not pruned.
        dense: bytes of the same training without SAMO, by the formula.
        terms: the state's parts.
    """

    parameters: int
    kept: int
    dense: int
    terms: tuple[Term, ...]

    @property
    def formula(self) -> int:
        """Bytes that the formula says."""
        return sum(term.formula for term in self.terms)

    @property
    def measured(self) -> int:
        """Bytes of the tensors' memory."""
        return sum(term.measured for term in self.terms)

    @property
    def saved(self) -> float:
        """Share of the dense state's bytes that is not needed; below zero where SAMO costs memory."""
        return 1 - self.measured / self.dense

    def __str__(self) -> str:
        rows = [*((one.name, one.formula, one.measured) for one in self.terms)]
        rows.append(("total", self.formula, self.measured))
        lines = [f"{name:<10}{formula:>16,}{measured:>16,}" for name, formula, measured in rows]
        head = f"{'bytes':<10}{'formula':>16}{'measured':>16}"
        tail = f"{self.kept:,} of {self.parameters:,} weights kept; {self.saved:.1%} less than dense"
        return "\n".join([head, *lines, tail])


def memory_report(handle: Samo) -> MemoryReport:
    """Measures a wrapped training against the formula; call it after a step, before ``zero_grad``.

    The measured bytes are those of the memory behind the tensors that training holds, alignment included:
    what
    no longer exists (gradients after ``zero_grad``, moments before the first step) measures 0.  "temporary"
    is what
    the last expansion needed and has given back.  Buffers, activations and frozen parameters are not counted.

    Args:
        handle: what `wrap` gave.

    Raises:
        ConfigError: it is something else.

    Example:
        >>> from dynaquant_core.memory import samo
        >>> model = torch.nn.Linear(512, 512, bias=False)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> handle = samo.wrap(model, optimizer, sparsity=0.75)
        >>> model(torch.ones(1, 512)).sum().backward()
        >>> optimizer.step()
        >>> report = memory_report(handle)
        >>> report.formula == 8 * 512**2, round(report.measured / report.formula, 3), round(report.saved, 2)
        (True, 1.0, 0.6)
    """
    require(
        isinstance(handle, Samo),
        f"samo.memory_report: expected the handle that samo.wrap gave, got {type(handle).__name__}.",
    )
    engine = handle.engine
    slots = engine.slots
    parameters = sum(slot.param.numel() for slot in slots)
    kept = sum(slot.kept for slot in slots)
    whole = sum(slot.kept for slot in slots if slot.index is None)
    half = engine.dtype != torch.float32
    moments = max((len(moments_of(engine.optimizer, slot)) for slot in slots), default=0)
    formula = samo_bytes(parameters, kept, whole=whole, moments=moments, half=half)
    measured = _measured(engine)
    return MemoryReport(
        parameters,
        kept,
        sum(dense_bytes(parameters, moments=moments, half=half).values()),
        tuple(Term(name, formula[name], measured[name]) for name in TERMS),
    )


def _measured(engine: Engine) -> dict[str, int]:
    slots = engine.slots
    seen: set[int] = set()
    return {
        "theta16": _memory((slot.param for slot in slots), seen),
        "grad16": _memory([*(bucket.buffer for bucket in engine.buckets), *_grads(engine, own=True)], seen),
        "theta32": _memory((memory.flat for memory in engine.masters), seen),
        "grad32": _memory(_grads(engine, own=False), seen),
        "moments": _memory((one for slot in slots for one in moments_of(engine.optimizer, slot)), seen),
        "index": _memory((slot.index for slot in slots if slot.index is not None), seen),
        "temporary": engine.temporary,
    }


def _grads(engine: Engine, *, own: bool) -> list[Tensor]:
    """Gradients that the optimizer sees, of parameters that it holds themselves or of the others."""
    return [slot.master.grad for slot in engine.slots if slot.own == own and slot.master.grad is not None]


def _memory(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """Bytes of the memory behind tensors that was not counted before."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
