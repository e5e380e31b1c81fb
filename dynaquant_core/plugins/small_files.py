"""Small files that a plugin keeps beside its checkpoints: writing them, and making durable what is there.

What a refusal comes to is here, too.  Plugins stand on this package alone, so what it takes from the store's
rooms for itself is theirs from here.
"""

from __future__ import annotations

from dynaquant_core.store.commit import write_atomically
from dynaquant_core.store.disk import guarded, sync_files, sync_folder
from dynaquant_core.training.tolerance import told

__all__ = ["guarded", "sync_files", "sync_folder", "told", "write_atomically"]
