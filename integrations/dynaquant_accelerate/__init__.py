"""DynaQuant checkpoints in Accelerate: ``install(accelerator)``, then ``save_state`` and ``load_state``.

Example:
    >>> sorted(__all__)
    ['Installed', 'export', 'install', 'newest']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynaquant_core.errors import DependencyError

try:
    import accelerate  # noqa: F401 - said here, where the name of what to install is known
except ImportError as error:
    raise DependencyError.of_extra("dynaquant_accelerate needs Accelerate", "accelerate") from error

if TYPE_CHECKING:
    from dynaquant_accelerate.entry import install
    from dynaquant_accelerate.folders import newest
    from dynaquant_accelerate.installed import Installed
    from dynaquant_accelerate.native import export

__all__ = ["Installed", "export", "install", "newest"]

#: Public name -> the module that defines it, imported on first use.
_LAZY = {
    "Installed": "dynaquant_accelerate.installed",
    "export": "dynaquant_accelerate.native",
    "install": "dynaquant_accelerate.entry",
    "newest": "dynaquant_accelerate.folders",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
