"""Lets every loader of Lightning read our folders: two module attributes are wrapped, once a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

__all__ = ["install_loader"]

#: Where Lightning's loaders look the function up: `load_from_checkpoint` of modules and data modules, and
#: `TorchCheckpointIO`, so that a Trainer or Fabric without our callback reads our folders too.
USERS = ("lightning.pytorch.core.saving", "lightning.fabric.plugins.io.torch_io")

MARK = "_dynaquant_reads"


def install_loader(reads: Callable[[Any], bool], read: Callable[..., Any]) -> None:
    """Wraps ``pl_load`` in the modules of `USERS`; a second call does nothing.

    Args:
        reads: whether a path is ours.
        read: reads it, called as ``pl_load`` is.
    """
    for name in USERS:
        module: Any = import_module(name)
        if not hasattr(module.pl_load, MARK):
            module.pl_load = _wrapped(module.pl_load, reads, read)


def _wrapped(original: Callable[..., Any], reads: Callable[[Any], bool], read: Callable[..., Any]) -> Any:
    @wraps(original)
    def pl_load(path_or_url: Any, *args: Any, **kwargs: Any) -> Any:
        return (read if reads(path_or_url) else original)(path_or_url, *args, **kwargs)

    setattr(pl_load, MARK, True)
    return pl_load
