"""What is refused, each with one line that says what is and is not supported."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import accelerate

from dynaquant_accelerate.folders import is_native, is_unfinished, of_two_saves
from dynaquant_core.errors import ConfigError, DependencyError, NotAStoreError
from dynaquant_core.plugins import is_checkpoint, require_whole
from dynaquant_core.plugins.marker import Marker

__all__ = ["require_known", "require_one_save", "require_ours", "require_whole_weights"]

logger = logging.getLogger(__name__)

#: Release lines that the tests have run with.
KNOWN: Final = ("1.15.",)

#: What this package uses beyond the documented interface.
NEEDED: Final = ("_models", "_optimizers", "_custom_objects", "project_configuration", "save_iteration")

#: Names of `DistributedType` under which every process holds whole weights.
WHOLE: Final = frozenset({"NO", "MULTI_CPU", "MULTI_GPU"})


def require_known(accelerator: Any) -> None:
    """Raises DependencyError where this Accelerate lacks what is used here; says so where it is untested."""
    missing = [name for name in NEEDED if not hasattr(accelerator, name)]
    if missing:
        raise DependencyError.of_extra(
            f"Accelerate {accelerate.__version__} has no {', '.join(missing)}, and dynaquant_accelerate is "
            f"known to work with 1.15",
            "accelerate",
        )
    if not accelerate.__version__.startswith(KNOWN):
        logger.warning(
            "dynaquant_accelerate is tested with Accelerate 1.15, this is %s", accelerate.__version__
        )


def require_whole_weights(accelerator: Any) -> None:
    """Raises ConfigError for set-ups and models that spread tensors over processes or write on each node."""
    kind = accelerator.distributed_type.value
    if kind not in WHOLE:
        raise ConfigError(
            f"dynaquant_accelerate saves models that every process holds whole (one process, or data "
            f"parallel on CPUs or GPUs), and this accelerator is {kind}: leave out install(), its "
            f"checkpoints stay Accelerate's own."
        )
    if accelerator.project_configuration.save_on_each_node:
        raise ConfigError(
            "dynaquant_accelerate writes each checkpoint once, into a folder that all nodes see: leave out "
            "save_on_each_node=True."
        )
    require_whole(getattr(accelerator, "_models", ()))


def require_ours(folder: Path) -> bool:
    """Whether ``folder`` holds a checkpoint of ours; False for native ones and for what is not there.

    Raises:
        NotAStoreError: it is another framework's, or the save into it was never finished.
    """
    if is_checkpoint(folder) and not is_native(folder):
        framework = Marker.read(folder).framework
        if framework != "accelerate":
            raise NotAStoreError(
                f"{str(folder)!r} is a checkpoint of {framework}, not of Accelerate: load it there, or "
                f"export it with: dynaquant export."
            )
        return True
    if is_unfinished(folder):
        raise NotAStoreError(
            f"the save into {str(folder)!r} was never finished: give the checkpoint before it "
            f"(dynaquant_accelerate.newest finds it)."
        )
    return False


def require_one_save(folder: Path) -> None:
    """Raises NotAStoreError where a checkpoint of ours lies among the files of another save."""
    mixed = of_two_saves(folder)
    if mixed is not None:
        raise NotAStoreError(
            f"{mixed}: give another checkpoint, or take both as they are from a folder that "
            f"dynaquant_accelerate.export(None, FOLDER, {str(folder)!r}) writes."
        )
