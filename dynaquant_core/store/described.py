"""What a safetensors file says of itself, carried along with its tensors: its ``__metadata__``, text by key.

Libraries keep there what the tensors are for (an adapter's rank, a title, a licence), and some read no file
without.  It travels in the checkpoint's report under `KEY`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.store.native import first_line, is_safetensors

__all__ = ["KEY", "PLAIN", "description_of", "read_description"]

logger = logging.getLogger(__name__)

#: Its key in a report.
KEY = "safetensors"
#: What every file of ours says, so that nobody needs to be told of it.
PLAIN: Mapping[str, str] = {"format": "pt"}

#: Characters that are carried along: far below what an index may hold, and above what libraries write.
MOST = 1 << 21


def read_description(path: Path) -> dict[str, Any]:
    """What a file says of itself, for the report of a checkpoint that is made of it.

    Args:
        path: of a file that `native.read_native` reads.

    Returns:
        An empty report where it says nothing, is no safetensors file, or says so much that it is left out,
        which the log tells.

    Raises:
        CorruptFileError: it became another file meanwhile.
    """
    if not is_safetensors(path):
        return {}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            said: dict[str, str] = dict(sorted((file.metadata() or {}).items()))  # given in any order
    except (SafetensorError, json.JSONDecodeError, ValueError) as error:
        raise CorruptFileError(f"{path}: not a whole safetensors file ({first_line(error)}).") from error
    length = sum(len(key) + len(text) for key, text in said.items())
    if length > MOST:
        logger.warning(
            "%s: its metadata have %s characters, of which a checkpoint takes %s, and were left out",
            *(path, f"{length:,}", f"{MOST:,}"),
        )
        return {}
    return {} if not said or said == PLAIN else {KEY: said}


def description_of(report: Mapping[str, Any]) -> dict[str, str]:
    """What the file that a checkpoint was made of said of itself; nothing where that is not known.

    Example:
        >>> description_of({"safetensors": {"rank": "16"}}), description_of({"safetensors": [1]})
        ({'rank': '16'}, {})
    """
    said = report.get(KEY)
    sound = isinstance(said, Mapping) and all(isinstance(text, str) for pair in said.items() for text in pair)
    return dict(said) if isinstance(said, Mapping) and sound else {}
