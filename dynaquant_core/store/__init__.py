"""Store: a folder of checkpoint files, written one atomic rename at a time and read without trust.

`store` is the public face; `saving` and `writer` take a state to a file, `reader`, `chain` and `restore`
bring one back, `retention` decides what may go.  A method is known through its protocol only.
"""

from __future__ import annotations

from dynaquant_core.store.info import CheckpointInfo, Problem
from dynaquant_core.store.saving import Saving, Sealed
from dynaquant_core.store.store import CheckpointStore

__all__ = ["CheckpointInfo", "CheckpointStore", "Problem", "Saving", "Sealed"]
