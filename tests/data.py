"""Where the tests' real data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def data_root() -> Path:
    """The data folder; skips the test where it is absent (README: where each file can be had)."""
    root = Path(os.environ.get("DYNAQUANT_DATA", "../shared/data"))
    if not root.is_dir():
        pytest.skip(f"no data at {root}; set DYNAQUANT_DATA to a folder that holds the files of the README")
    return root
