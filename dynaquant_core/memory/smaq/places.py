"""Where in a model something is coded: what statistics that are used again are remembered under.

By order alone a layer that is skipped once would pass its statistics on to the next one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Final

from torch import nn

__all__ = ["CALL", "place_of_call"]

#: What every call of a module runs, its hooks and its forward inside.
CALL: Final = nn.Module._call_impl.__code__


def place_of_call(names: Mapping[nn.Module, str], above: nn.Module | None = None) -> str:
    """The module that runs, by name, and the lines of code from its call to here.

    Args:
        names: of the model's modules.
        above: a module whose call is passed over, for hooks, which torch runs inside of it.

    Example:
        >>> class Layer(nn.Module):
        ...     def forward(self):
        ...         return place_of_call({self: "body.0"})
        >>> Layer()().split("/")[0]
        'body.0'
    """
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CALL:
            module = frame.f_locals["self"]
            if module is not above:
                return f"{names.get(module, type(module).__name__)}/{'.'.join(lines)}"
            lines.clear()  # what is inside of it says nothing
        lines.append(str(frame.f_lineno))
        frame = frame.f_back
    return f"/{'.'.join(lines)}"
