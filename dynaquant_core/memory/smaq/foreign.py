"""Operators and functions that are none of torch's own, and checkpointed blocks: what they save stays exact.

Nothing is known of their backward passes.  Torchvision's boxes hold image numbers as floats, and its kernel
adds to a gradient wherever they point: once packed, some pointed to images that there are not, and the
process ended in a segmentation fault.  Fused attention exponentiates a difference, as in `attention`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from dynaquant_core.errors import DependencyError

__all__ = ["in_foreign_function", "is_foreign", "require_tellable"]

#: What ``torch.ops`` holds.
OPERATORS: Final = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

#: Torch's own of them.
OWN: Final = frozenset({"torch._ops.aten", "torch._ops.prim", "torch._ops.prims"})

#: What every function of ``torch.autograd.Function`` is called through, and what it then saves is saved by.
#: None: it is none of Python's (torch 2.14), and nothing stands between a function's caller and the hook.
APPLY: Final = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)

#: Torch's own that `torch.vmap` makes of functions of others.
VMAPPED: Final = "torch._functorch.autograd_function"

#: Activation checkpointing, which keeps what a block is given by a function of its own, or with none.
CHECKPOINT: Final = "torch.utils.checkpoint"
CHECKPOINT_FILE: Final = str(Path(torch.__file__).parent / "utils" / "checkpoint.py")

#: Where torch wraps hooks that it shall not compile; importing that takes a second.
WRAPPER: Final = str(Path(torch.__file__).with_name("_dynamo") / "eval_frame.py")


def is_foreign(func: Any) -> bool:
    """Whether something that is called is an operator of another library.

    Example:
        >>> is_foreign(torch.ops.aten.sin), is_foreign(torch.ops.quantized.add), is_foreign(torch.sin)
        (False, True, False)
    """
    return isinstance(func, OPERATORS) and func.__module__ not in OWN


def require_tellable() -> None:
    """Raises DependencyError where torch leaves no way to tell whose function saves a map."""
    if APPLY is None:
        raise DependencyError(
            f"SmaQ: torch {torch.__version__} calls a torch.autograd.Function from C, so that what other "
            f"libraries save by one could not be told from maps that may be packed; expected torch below "
            f"2.14: python -m pip install 'torch<2.14', or give feature_maps=None (or 'inline')."
        )


def in_foreign_function() -> bool:
    """Whether the hook that asks was called for what a `torch.autograd.Function` of another library saves.

    Those of torch save maps like any other, but for what a checkpointed block is given: computed anew from
    rounded values, tokens go to other experts, and numbers that stand for places point elsewhere.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == WRAPPER:
        frame = frame.f_back
    if frame is None or frame.f_code is not APPLY:
        return frame is not None and frame.f_code.co_filename == CHECKPOINT_FILE
    module = str(frame.f_locals["cls"].__module__)
    return not module.startswith("torch.") or module in (VMAPPED, CHECKPOINT)
