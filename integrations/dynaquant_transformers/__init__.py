"""DynaQuant checkpoints in the Hugging Face Trainer: one more callback, everything else as it is.

Importing this package is what makes the Trainer read such checkpoints; the callback makes it write them.

Example:
    >>> sorted(__all__)
    ['DynaQuantCallback', 'DynaQuantTrainerMixin', 'SmaQCallback', 'export', 'importer', 'install']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynaquant_core.errors import DependencyError

try:
    import accelerate  # noqa: F401 - the Trainer cannot be used without it
    import transformers  # noqa: F401
except ImportError as error:
    raise DependencyError.of_extra(
        "dynaquant_transformers needs transformers and accelerate", "transformers"
    ) from error

from dynaquant_transformers.callback import DynaQuantCallback
from dynaquant_transformers.install import install
from dynaquant_transformers.joining import importer
from dynaquant_transformers.leaving import export
from dynaquant_transformers.mixin import DynaQuantTrainerMixin

if TYPE_CHECKING:
    from dynaquant_transformers.smaq import SmaQCallback

__all__ = [
    "DynaQuantCallback",
    "DynaQuantTrainerMixin",
    "SmaQCallback",
    "export",
    "importer",
    "install",
]


def __getattr__(name: str) -> Any:
    # SmaQ reads what torch does not promise; checkpoints shall not depend on that.
    if name != "SmaQCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("dynaquant_transformers.smaq").SmaQCallback


install()
