"""Format: the bytes of one checkpoint file, written stream by stream and read with every check first.

The file is described byte by byte in docs/FORMAT.md.  Nothing here knows what a stream means: that is its
method's business; nor when a file is committed: that is the store's.
"""

from __future__ import annotations

from dynaquant_core.format.entries import SHARED, Index, StreamEntry, TensorEntry
from dynaquant_core.format.layout import FORMAT_VERSION, MAGIC
from dynaquant_core.format.reader import FileReader, PartSource
from dynaquant_core.format.writer import FileWriter

__all__ = [
    "FORMAT_VERSION",
    "MAGIC",
    "SHARED",
    "FileReader",
    "FileWriter",
    "Index",
    "PartSource",
    "StreamEntry",
    "TensorEntry",
]
