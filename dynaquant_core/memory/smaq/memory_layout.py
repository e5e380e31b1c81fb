"""A saved tensor as one flat run of the memory that it stands for, and as the view that it was.

Autograd saves views as they come: transposed, expanded, channels last, overlapping.  What is packed is the
memory behind a view, once: two views of the same run are the same run, an expanded one costs what it was
expanded from, and what comes back has the strides that it had.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["View", "flat_run"]


@dataclass(frozen=True, slots=True)
class View:
    """How a tensor looks at a flat run.

    Args:
        shape: of the tensor.
        stride: of the tensor, in elements of the run.
        offset: of its first element in the run.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, run: Tensor) -> Tensor:
        """The tensor, from its run."""
        return run.as_strided(self.shape, self.stride, self.offset)


def flat_run(tensor: Tensor) -> tuple[Tensor, View]:
    """(flat run, how the tensor looks at it): a view of its memory where that is dense, else a dense copy.

    Example:
        >>> import torch
    >>> run, view = flat_run(torch.arange(6.0).view(2, 3).t().expand(4, 3, 2))
        >>> run.tolist(), view.of(run).shape
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], torch.Size([4, 3, 2]))
    """
    shape, stride, first = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
    core = _unexpanded(tensor)
    if _is_dense(core):
        run = core.as_strided((core.numel(),), (1,), core.storage_offset())
        return run, View(shape, stride, 0)
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if core.numel() > held:  # it overlaps itself: the whole memory is less
        return tensor.as_strided((held,), (1,), 0), View(shape, stride, first)
    copy = core.contiguous()
    strides = zip(copy.stride(), core.shape, shape, strict=True)
    return copy.view(-1), View(shape, tuple(0 if own != whole else step for step, own, whole in strides), 0)


def _unexpanded(tensor: Tensor) -> Tensor:
    """The tensor with one of each of what it only repeats."""
    for dimension, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a run of memory, each place once."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True
