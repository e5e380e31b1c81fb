"""Compressed communication: gradients that travel in fewer bytes, by name or by technique.

``comm.register(ddp_model, {"compression": "2bit", "threshold": 0.5})`` and
``two_bit.register(ddp_model, threshold=0.5)`` are the same.
"""

from __future__ import annotations

from dynaquant_core.comm.registry import register

__all__ = ["register"]
