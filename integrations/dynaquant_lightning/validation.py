"""The quality of a LightningModule by its own `validation_step`, as a search needs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric

from dynaquant_core.errors import ConfigError
from dynaquant_lightning.aside import set_aside
from dynaquant_lightning.batches import Batch, held_out

__all__ = ["Validation"]

logger = logging.getLogger(__name__)

Logged = dict[str, Any]


class Validation:
    """Runs `validation_step` on fixed batches of the Trainer's validation data and leaves no trace.

    Nothing is logged, no hook and no callback is called, and what the step does to metrics and attributes of
    the module is put back.  The step is called on the module itself, not through a wrapper such as DDP, so
    that ranks may measure different candidates at the same time.

    Args:
        trainer: one that fits.
        metric: name of a logged value; None: the loss that the step returns, or else the first logged value
            with "loss" in its name.  The log says so where a bare number that is returned is no logged loss.

    Attributes:
        ready: whether `prepare` found that there is something to measure.
    """

    def __init__(self, trainer: Trainer, metric: str | None = None) -> None:
        self._trainer = trainer
        self._metric = metric
        self._batches: list[Batch] = []
        self.ready = False

    def prepare(self) -> str | None:
        """Reads the batches, once, and tries the step on one of them; every rank at the same time.

        Returns:
            None, or why nothing can be measured; a step that failed may do better at another time.

        Raises:
            ConfigError: the named value is not logged; says which are.
        """
        if self.ready:
            return None
        try:
            self._batches = self._batches or held_out(self._trainer)
        except Exception as error:  # noqa: BLE001 - the user's data: whatever they raise
            return f"the validation data cannot be read in this process ({_told(error)})"
        if not self._batches:
            return "there is no validation_step with validation data"
        reason = self._tried(self._batches[0])
        self.ready = reason is None
        return reason

    def _tried(self, batch: Batch) -> str | None:
        module = self._trainer.lightning_module
        try:
            with isolate_rng(), _buffers_kept(module), torch.no_grad(), self._ready() as logged:
                output = self._step(batch)
                value = self._value(output, logged)
        except Exception as error:  # noqa: BLE001 - the user's step: it may lean on hooks that have not run
            return f"validation_step cannot be called on its own here ({_told(error)})"
        if value is not None:
            if self._metric is None and value is output and not _is_logged_as_loss(value, logged):
                logger.warning(
                    "what validation_step returns is taken for a loss, the lower the better (it logs %s); if "
                    "it is none, give evaluate= the name of a logged value, or a function, and mode=",
                    _names(logged),
                )
            return None
        said = f"validation_step logs {_names(logged)}"
        if self._metric is not None:
            raise ConfigError(f"evaluate={self._metric!r} is no function, and {said}: name one of these.")
        return f"{said} and returns no loss: give evaluate= the name of a logged value, or a function"

    def __call__(self) -> list[float]:
        """One value a batch; of metric objects, which gather over batches, one value each."""
        values: list[Any] = []
        with self._ready() as logged:
            for batch in self._batches:
                logged.clear()
                value = self._value(self._step(batch), logged)
                if value is not None and not any(value is one for one in values if isinstance(one, Metric)):
                    values.append(value)
            return [float(one.compute() if isinstance(one, Metric) else one) for one in values]

    @contextmanager
    def _ready(self) -> Iterator[Logged]:
        """The module as in a validation, heard by nobody; gives what it logs."""
        trainer = self._trainer
        module = trainer.lightning_module
        was_training = [one for one in module.modules() if one.training]
        with ExitStack() as stack:
            stack.callback(_train, was_training)
            stack.enter_context(set_aside(module))
            logged = stack.enter_context(_unheard(trainer, module))
            stack.enter_context(trainer.precision_plugin.val_step_context())
            module.eval()
            for metric in module.modules():
                if isinstance(metric, Metric):
                    metric.reset()
                    metric.distributed_available_fn = _alone  # ranks measure different candidates
            yield logged

    def _step(self, batch: Batch) -> Any:
        trainer = self._trainer
        module = trainer.lightning_module
        data = trainer.precision_plugin.convert_input(batch.copied())
        number = batch.loader or 0
        data = module._on_before_batch_transfer(data, dataloader_idx=number)
        data = module._apply_batch_transfer_handler(data, device=module.device, dataloader_idx=number)
        arguments: list[Any] = [data]
        if is_param_in_hook_signature(module.validation_step, "batch_idx", min_args=2):
            arguments.append(batch.index)
        if batch.loader is not None:
            arguments.append(batch.loader)
        return module.validation_step(*arguments)

    def _value(self, output: Any, logged: Logged) -> Any:
        """The number, or metric object, that says how good the module is; None where there is none."""
        if self._metric is not None:
            return logged.get(self._metric)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if isinstance(loss, (float, Tensor)) and (isinstance(loss, float) or loss.numel() == 1):
            return loss
        return next((value for name, value in logged.items() if "loss" in name.lower()), None)


def _is_logged_as_loss(value: Any, logged: Logged) -> bool:
    """Whether a number that is returned is one that is also logged, and called a loss."""
    losses = [one for name, one in logged.items() if "loss" in name.lower()]
    return any(isinstance(one, Metric) or float(one) == float(value) for one in losses)


def _names(logged: Logged) -> str:
    return ", ".join(map(repr, sorted(logged))) or "nothing"


@contextmanager
def _unheard(trainer: Trainer, module: LightningModule) -> Iterator[Logged]:
    """Catches what the module logs; loggers, stage and hook name are put back at the end."""
    logged: Logged = {}

    def log(name: str, value: Any, *_: Any, **__: Any) -> None:
        logged[name] = value

    before = trainer.loggers, trainer.state.stage, module._current_fx_name
    try:
        trainer.loggers = [DummyLogger()] if trainer.loggers else []
        trainer.state.stage = RunningStage.VALIDATING
        module._current_fx_name = "validation_step"
        vars(module)["log"] = log  # `log_dict` calls it too; `set_aside` takes it away again
        yield logged
    finally:
        trainer.loggers, trainer.state.stage, module._current_fx_name = before


@contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            if not torch.equal(buffer, value):  # a backward pass that is due may need it unwritten
                buffer.copy_(value)


def _told(error: Exception) -> str:
    """An error of the user's code in one line."""
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]


def _alone() -> bool:
    return False


def _train(modules: list[torch.nn.Module]) -> None:
    for module in modules:
        module.training = True
