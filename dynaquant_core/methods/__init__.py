"""Methods: what a reader gets back instead of the true tensors, one file a method, behind one protocol.

`base` holds the protocol, `registry` the table of names.  Search and store know no method by its class.
"""

from __future__ import annotations

from dynaquant_core.methods.base import (
    Draft,
    Hints,
    Method,
    Reference,
    Space,
    Stream,
    StreamSource,
    TensorSpec,
)
from dynaquant_core.methods.registry import method_names, resolve_method

__all__ = [
    "Draft",
    "Hints",
    "Method",
    "Reference",
    "Space",
    "Stream",
    "StreamSource",
    "TensorSpec",
    "method_names",
    "resolve_method",
]
