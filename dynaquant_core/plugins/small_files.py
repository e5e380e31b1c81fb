"""Small files that a plugin keeps beside its checkpoints: how one is written, and what a refusal comes to.

Plugins stand on this package alone, so what it takes from the store's rooms for itself is theirs from here.
"""

from __future__ import annotations

from dynaquant_core.store.commit import write_atomically
from dynaquant_core.store.disk import guarded
from dynaquant_core.training.tolerance import told

__all__ = ["guarded", "told", "write_atomically"]
