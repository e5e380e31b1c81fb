"""One forward pass: what autograd saves in it is packed, each run of memory once.

Of what backward only asks on which side of a threshold it lies, that is kept (`gates`).  Left as they are:
the model's parameters and buffers and the batch that it was called with, which live anyway, casts of
parameters (`recasts`), log-probabilities, one value a row, what attention and norms need as it is, what
operators of other libraries save and checkpointed blocks are given (`foreign`), and what `Coder.takes` does
not take.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dynaquant_core.lazy import lazy
from dynaquant_core.memory.smaq.batches import tensors_of
from dynaquant_core.memory.smaq.calls import Calls
from dynaquant_core.memory.smaq.coder import Coder
from dynaquant_core.memory.smaq.derivatives import Derivatives, Reading
from dynaquant_core.memory.smaq.foreign import in_foreign_function
from dynaquant_core.memory.smaq.format import Packed
from dynaquant_core.memory.smaq.gates import Gated, Rule
from dynaquant_core.memory.smaq.held import Kept, Ledger, Memory, Run
from dynaquant_core.memory.smaq.memory_layout import View, flat_run
from dynaquant_core.memory.smaq.places import place_of_call
from dynaquant_core.memory.smaq.recasts import recast_of

__all__ = ["Forward", "address"]

#: How far from 1 the sum of a row's probabilities may be, their logarithms being of half precision.
NEAR = 0.05


@dataclass(slots=True)
class Known:
    """What was packed of one storage.

    Args:
        record: of the storage.  A weak reference keeps the record, not the memory, until the forward pass is
            over; so another storage at the same address is another one.
        memory: as it is counted.
        runs: (`reading` of the tensor, which run of it, packed).
        kept: attention, a norm or an operator of another library holds it as it is, so that packing it for
            others would cost memory and save none.
    """

    record: StorageWeakRef
    memory: ReferenceType[Memory] | None = None
    runs: list[tuple[tuple[Any, ...], Any, ReferenceType[Run]]] = field(default_factory=list)
    kept: bool = False


class Forward:
    """What one forward pass has packed so far, and what it leaves alone.

    Args:
        model: whose parameters and buffers are left alone.
        batch: what it was called with; its tensors are left alone as well (`batches`).
        coder: how.
        ledger: what counts the bytes.
        derivatives: is told of one that is taken before the pass is over; None: nobody is.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        coder: Coder,
        ledger: Ledger,
        derivatives: Derivatives | None = None,
    ) -> None:
        self.model, self.coder, self.ledger = model, coder, ledger
        self.derivatives = derivatives
        self.spared = {address(tensor) for tensor in model.parameters()}
        self.spared |= {address(tensor) for tensor in model.buffers()}
        self.spared |= {address(tensor) for tensor in tensors_of(batch)}
        self.known: dict[int, Known] = {}
        self.counts: Counter[str] = Counter()
        self.calls = Calls()
        self.parameters = frozenset(model.parameters())

    @lazy
    def names(self) -> dict[nn.Module, str]:
        """The model's modules by name."""
        return {module: name for name, module in self.model.named_modules()}

    def open(self) -> ExitStack:
        """Packs on this thread what autograd saves from here on, until it is closed.

        A compiled model runs what is told to autograd between its graphs: nothing of it can be part of one.
        """
        reading = Reading(self.derivatives)
        pack, read = (torch.compiler.disable(one) for one in (self.pack, reading.read))  # type: ignore[no-untyped-call]
        opened = ExitStack()
        opened.callback(reading.close)
        opened.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, read))
        opened.enter_context(self.calls)
        return opened

    def pack(self, tensor: Tensor) -> Any:
        """A saved tensor as (what has its values, view); where it is left alone, another view of its memory.

        Not as itself: an operation that saves its own output would hold it in a cycle through the graph that
        no collector sees, and a forward pass without a backward one (a batch that is skipped) would never be
        freed.
        """
        if not self.coder.takes(tensor) or type(tensor) not in (Tensor, nn.Parameter):
            return Kept.of(tensor)
        if address(tensor) in self.spared or is_one_a_row(tensor):
            return Kept.of(tensor)
        record = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        known = self.known.setdefault(record.cdata, Known(record))
        known.kept = known.kept or self.calls.spares(tensor) or in_foreign_function()
        if known.kept:
            give_way(known, tensor)
            return Kept.of(tensor)
        rule = self.calls.gate() if tensor.numel() else None
        packed: Any = rule and self._gated(known, tensor, rule)
        packed = packed or covering(known, tensor) or recast_of(tensor, self.parameters)
        if packed is None and not is_log_probabilities(tensor):
            packed = self._packed(known, tensor)
        return Kept.of(tensor) if packed is None else packed

    def _packed(self, known: Known, tensor: Tensor) -> tuple[Run, View] | None:
        """Packs the run of memory that a tensor looks at."""
        with torch.no_grad():
            flat, view = flat_run(tensor)
        storage = tensor.untyped_storage()
        packed = self.coder.pack(flat, "saved", self._place(), raw_of(known, tensor))
        if packed is None:
            return None
        run = self._run(packed, known, tensor)
        shared = flat.untyped_storage().data_ptr() == storage.data_ptr()
        where = (flat.storage_offset(), flat.numel()) if shared else look(tensor)
        known.runs.append((reading(tensor), where, ref(run)))
        return run, view

    def _gated(self, known: Known, tensor: Tensor, rule: Rule) -> tuple[Run, View]:
        """Keeps which values are open, for the call under way alone."""
        with torch.no_grad():
            flat, view = flat_run(tensor)
            packed = Gated.of(flat, rule)
        self.coder.count(packed, "saved", raw_of(known, tensor))
        return self._run(packed, known, tensor), view

    def _run(self, packed: Packed, known: Known, tensor: Tensor) -> Run:
        """What is packed, held with the memory that autograd would hold."""
        memory = known.memory and known.memory()
        memory = memory or Memory(raw_of(known, tensor), self.ledger)
        known.memory = ref(memory)
        return Run(packed, memory, self.ledger)

    def _place(self) -> str:
        """What statistics are remembered under: known by the call, and counted where it comes again."""
        place = place_of_call(self.names) if self.coder.reuse else ""
        self.counts[place] += 1
        return f"{place}/{self.counts[place]}"


def raw_of(known: Known, tensor: Tensor) -> int:
    """Bytes that autograd would hold of a tensor's memory, beside what is counted of it already."""
    return 0 if known.memory and known.memory() else tensor.untyped_storage().nbytes()


def look(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor looks at its storage."""
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def reading(tensor: Tensor) -> tuple[Any, ...]:
    """What its memory means: as what, as it was when, and whether as its opposite.

    The version changes when a tensor is written to.  The imaginary part of a conjugate is marked as negative
    and lies in the same memory as that of the number itself.
    """
    return tensor.dtype, tensor._version, tensor.is_neg()


def give_way(known: Known, tensor: Tensor) -> None:
    """Has nodes that saved a tensor before, packed, read what is now held as it is: exact, and held once.

    A sigmoid keeps what it gives, and the loss behind it that needs it as it is comes later.
    """
    for read, where, reference in known.runs:
        run = reference()
        if run is not None and read == reading(tensor) and len(where) == 2:
            first, size = where
            run.give_way(Kept.of(tensor.detach().as_strided((size,), (1,), first)))
    known.runs.clear()


def covering(known: Known, tensor: Tensor) -> tuple[Run, View] | None:
    """A packed run that holds all of a tensor, or a copy of just what it looks at; None: there is none yet.

    So a tensor that several nodes save is packed once, and slices of a packed tensor with it.
    """
    shape, stride, first = look(tensor)
    last = first + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    for read, where, reference in known.runs:
        run = reference()
        if run is None or read != reading(tensor):
            continue
        if where == (shape, stride, first):
            with torch.no_grad():
                return run, flat_run(tensor)[1]
        if len(where) == 2 and where[0] <= first and last < where[0] + where[1]:
            return run, View(shape, stride, first - where[0])
    return None


def is_one_a_row(tensor: Tensor) -> bool:
    """Whether a tensor has one value for each row of another, as the deviations that a layer norm saves.

    Each scales a whole row, there are few of them, and a few rows of zeros (padding), whose reciprocal of a
    deviation is hundreds of times the others', make the levels so coarse that all the others are wrong.
    """
    return tensor.dim() > 1 and tensor.shape[-1] == 1


def is_log_probabilities(tensor: Tensor) -> bool:
    """Whether a tensor is what a cross-entropy inside of the model saves, by its first column or row.

    Its backward takes exp(value) - 1 at the labels: a value near zero that is clamped to two deviations from
    the mean gives confident predictions the gradient of wrong ones, and training goes astray.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [-9.0, 1.0]])
        >>> is_log_probabilities(logits.log_softmax(1)), is_log_probabilities(logits)
        (True, False)
    """
    for dimension in {min(1, tensor.dim() - 1), tensor.dim() - 1}:
        one = tensor.detach()[tuple(slice(None) if at == dimension else 0 for at in range(tensor.dim()))]
        if one.max().item() > 0:
            return False  # nearly always; on a device this is one thing to wait for
        if one.numel() > 1 and abs(one.float().exp().sum().item() - 1) < NEAR:
            return True
    return False


def address(tensor: Tensor) -> int:
    """Where a tensor's memory begins; 0 where it has none of its own (sparse, jagged)."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
