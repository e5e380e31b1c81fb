"""What the word ``kind`` of an experiment stands for: one module a kind, and the table of them."""

from __future__ import annotations
