"""What the plugins of all frameworks share.

A framework's checkpoint becomes a folder that stands alone (`folder`, `marker`): the files of a chain, hard
links to those of the checkpoint before, and beside them what a DynaQuant tree cannot hold (`rest`).  A plugin
translates its framework's events into calls of one `PluginRun`, and its state into a tree; it knows nothing
of bytes.  `reading` is for those who have a folder and no run.
"""

from __future__ import annotations

from dynaquant_core.hooks import OwnedHooks
from dynaquant_core.plugins.figures import figures_of
from dynaquant_core.plugins.marker import MARKER, is_checkpoint
from dynaquant_core.plugins.options import PluginOptions
from dynaquant_core.plugins.reading import describe, find_checkpoints, read_tree
from dynaquant_core.plugins.run import PluginRun
from dynaquant_core.state.sharded import is_sharded
from dynaquant_core.training.turns import Turns
from dynaquant_core.training.whole import require_whole

__all__ = [
    "MARKER",
    "OwnedHooks",
    "PluginOptions",
    "PluginRun",
    "Turns",
    "describe",
    "figures_of",
    "find_checkpoints",
    "is_checkpoint",
    "is_sharded",
    "read_tree",
    "require_whole",
]
