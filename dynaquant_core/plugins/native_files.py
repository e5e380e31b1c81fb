"""Native files: what a plugin's exporter writes and its importer reads.

Plugins stand on this package alone, so what it takes from the store's rooms for itself is theirs from here.
"""

from __future__ import annotations

from dynaquant_core.store.export import replace_natively, write_natively, write_tensors
from dynaquant_core.store.native import read_torch, whole_number

__all__ = ["read_torch", "replace_natively", "whole_number", "write_natively", "write_tensors"]
