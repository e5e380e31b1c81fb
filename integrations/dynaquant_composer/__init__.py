"""DynaQuant checkpoints in Composer: ``Trainer(..., callbacks=[DynaQuantCallback(folder, ...)])``.

Example:
    >>> sorted(__all__)
    ['DynaQuantCallback', 'export', 'importer']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynaquant_core.errors import DependencyError

try:
    import composer  # noqa: F401 - said here, where the name of what to install is known
except ImportError as error:
    raise DependencyError.of_extra(
        "dynaquant_composer needs Composer 0.32, and that torch 2.7", "composer"
    ) from error

if TYPE_CHECKING:
    from dynaquant_composer.callback import DynaQuantCallback
    from dynaquant_composer.native import export, importer

__all__ = ["DynaQuantCallback", "export", "importer"]

#: Public name -> the module that defines it, imported on first use.
_LAZY = {
    "DynaQuantCallback": "dynaquant_composer.callback",
    "export": "dynaquant_composer.native",
    "importer": "dynaquant_composer.native",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
