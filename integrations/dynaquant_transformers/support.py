"""What this plugin supports, said in one line where something is not."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import transformers
from transformers import Trainer
from transformers.trainer_utils import HubStrategy

from dynaquant_core.errors import ConfigError, DependencyError, StateMismatchError
from dynaquant_core.plugins.marker import Marker

__all__ = ["FRAMEWORK", "KNOWN", "SIGNATURES", "require_known_trainer", "require_own", "require_supported"]

logger = logging.getLogger(__name__)

#: What our marker says of the checkpoints of this package.
FRAMEWORK: Final = "transformers"

#: Versions of transformers that the tests were run with.
KNOWN: Final = ("5.23.0",)

#: What the methods that are wrapped or called, public or not, must take.
SIGNATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
    "_save_checkpoint": ("model", "trial"),
    "_save": ("output_dir", "state_dict"),
    "_save_optimizer_and_scheduler": ("output_dir",),
    "_load_from_checkpoint": ("resume_from_checkpoint", "model"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_load_best_model": (),
    "_get_output_dir": ("trial",),
    "prediction_step": ("model", "inputs", "prediction_loss_only", "ignore_keys"),
    "get_eval_dataloader": ("eval_dataset",),
}


def require_known_trainer(trainer: type[Any] = Trainer) -> None:
    """Checks that the Trainer's methods are the ones that this plugin was written for.

    A version that was not tested but looks the same is told in the log.

    Raises:
        DependencyError: a method is missing or takes other arguments; says which versions work.
    """
    for name, wanted in SIGNATURES.items():
        method = getattr(trainer, name, None)
        found = () if method is None else tuple(inspect.signature(method).parameters)[1:]
        if method is None or found != wanted:
            seen = "is missing" if method is None else f"takes ({', '.join(found)})"
            raise DependencyError(
                f"transformers {transformers.__version__}: Trainer.{name} {seen}, expected "
                f"({', '.join(wanted)}); run: pip install 'transformers=={KNOWN[-1]}'"
            )
    if transformers.__version__ not in KNOWN:
        logger.warning(
            "transformers %s is not among the versions that DynaQuant is known to work with (%s); "
            "its Trainer looks the same",
            transformers.__version__,
            ", ".join(KNOWN),
        )


def require_supported(trainer: Trainer) -> None:
    """Refuses modes whose model or optimizer is not whole in one process.

    Raises:
        ConfigError: names the mode and what to do.
    """
    sharded = {
        "DeepSpeed": getattr(trainer, "is_deepspeed_enabled", False),
        "FSDP": getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_fsdp_xla_enabled", False),
        "a model sharded when it was loaded": getattr(
            trainer, "is_distributed_loading_by_transformers", False
        ),
    }
    for mode, active in sharded.items():
        if active:
            raise ConfigError(
                f"DynaQuant does not save {mode}, where no process holds the whole state; one process and "
                f"data parallel (DDP) are supported. Take DynaQuantCallback out of the callbacks."
            )
    if trainer.args.save_on_each_node and trainer.args.world_size > 1:
        raise ConfigError("DynaQuant has one writer: set save_on_each_node=False, share the output folder.")
    if trainer.args.push_to_hub and trainer.args.hub_strategy != HubStrategy.END:
        raise ConfigError(
            f"hub_strategy={trainer.args.hub_strategy.value!r} uploads native weights out of checkpoints, "
            f"and DynaQuant writes none there; set hub_strategy='end'."
        )


def require_own(folder: Path) -> None:
    """Refuses a checkpoint that another framework's plugin wrote; raises StateMismatchError."""
    framework = Marker.read(folder).framework
    if framework != FRAMEWORK:
        raise StateMismatchError(
            f"{str(folder)!r} is a checkpoint of {framework}, not of {FRAMEWORK}; resume it there, or read "
            f"it with dynaquant_core.plugins.read_tree."
        )
