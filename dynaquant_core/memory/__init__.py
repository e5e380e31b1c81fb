"""What training holds in memory, made smaller: SmaQ and SAMO."""

from __future__ import annotations
