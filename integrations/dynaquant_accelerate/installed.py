"""``save_state`` and ``load_state`` of one accelerator, with DynaQuant in place of full tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dynaquant_accelerate.folders import is_sign, weights_in
from dynaquant_accelerate.former import Former
from dynaquant_accelerate.guard import require_one_save, require_ours
from dynaquant_accelerate.live import modules_of, put_back, state_of
from dynaquant_accelerate.loaders import as_before
from dynaquant_accelerate.naming import Naming
from dynaquant_accelerate.prepared import averages, inner_optimizers, whose, written_of
from dynaquant_accelerate.schedule import Steps, steps_of
from dynaquant_accelerate.shadows import SAVE, giving_stubs, ignoring_stubs, new_stub
from dynaquant_accelerate.tracking import Tracking
from dynaquant_core import CheckpointInfo
from dynaquant_core.errors import DynaQuantError, EvaluationError, StorageError
from dynaquant_core.plugins import PluginOptions, PluginRun, Turns
from dynaquant_core.plugins.agreement import on_all_ranks
from dynaquant_core.plugins.meeting import Meeting
from dynaquant_core.plugins.refusal import is_refusal

__all__ = ["PLACE", "Installed"]

#: Attribute of an accelerator that holds its `Installed`.
PLACE = "_dynaquant"

#: Its methods that are replaced.
REPLACED = ("save_state", "load_state", "end_training", "free_memory", "log")

logger = logging.getLogger(__name__)


class Installed:
    """DynaQuant in one accelerator; made by `install`.

    Args:
        accelerator: after ``prepare``.
        options: how checkpoints are made.
        every: optimizer steps between saves, or None.
        before: the `Installed` that this one replaces, closed; its steps go on.
    """

    def __init__(
        self,
        accelerator: Any,
        options: PluginOptions,
        every: int | None,
        before: Installed | None = None,
    ) -> None:
        self._accelerator, self._naming, self._former = accelerator, Naming(accelerator), Former()
        self._evaluate = None if options.evaluate is None else _of_the_model(options.evaluate, accelerator)
        options = replace(options, evaluate=None)
        self._raises = options.on_error == "raise"
        self._tracking = Tracking(accelerator)
        self._run = PluginRun(options, framework="accelerate", report=self._tracking.put)
        self._watch()
        self._steps = Steps(self._counted, every, self._run.look_ahead)
        if before is not None:
            self._steps.go_on(before._steps)
        self._save, self._load = accelerator.save_state, accelerator.load_state
        self._end, self._free = accelerator.end_training, accelerator.free_memory
        self._turns = Turns()
        self._before = {name: own for name, own in vars(accelerator).items() if name in REPLACED}
        accelerator.save_state, accelerator.load_state = self.save_state, self.load_state
        accelerator.end_training, accelerator.free_memory = self.end_training, self.free_memory
        accelerator.log = self._tracking.log
        setattr(accelerator, PLACE, self)

    @property
    def step(self) -> int:
        """Optimizer steps completed, those before a restore included.

        A native checkpoint holds no count of its own: there it is what its optimizers have counted (Adam
        does), and 0 where none does (SGD).
        """
        return self._steps.done

    @property
    def last(self) -> CheckpointInfo | None:
        """The checkpoint committed last; None before the first."""
        return self._run.last

    def newest(self) -> str | None:
        """The newest whole checkpoint under automatic naming, for `load_state`; None: nothing to load yet.

        It waits for the saves that are under way, and for no other process: any may call it by itself.
        It looks into a folder that all processes see.
        """
        self._run.wait()
        return self._naming.newest()

    def wait(self) -> CheckpointInfo | None:
        """Waits until the save in the background is committed; returns the last checkpoint's info."""
        return self._run.wait()

    def save_state(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """As ``Accelerator.save_state``; of numbered checkpoints weights and optimizer follow behind.

        Under automatic naming they are encoded and committed in the background, and the folder counts as a
        checkpoint from then on: `wait` before you copy, rename or upload it.  A folder that you name is whole
        when this returns.  A save that a signal's handler asks for in the middle of another follows that one,
        and None is returned.

        Raises:
            SaveError: the save before, or that into a folder that you name, could not be written, here or on
                another process.
            EvaluationError: ``evaluate`` failed; the checkpoint is exact.
            StorageError: the system refused one of Accelerate's own files.
        """
        places: list[Any] = []
        self._turns.take(lambda: places.append(self._save_state(output_dir, *args, **kwargs)))
        return places[0] if places else None

    def _save_state(self, output_dir: str | None, *args: Any, **kwargs: Any) -> Any:
        run, steps = self._run, self._steps
        meeting = Meeting(steps.done, steps.since, call="save_state", alone=not self._naming.automatic)
        run.meet(steps.done, meeting.come)
        if not run.enabled:
            return None
        if meeting.together:
            steps.agree(meeting.step)
        step = steps.done
        stub = new_stub(step)
        self._watch()  # what was prepared or registered since belongs to it
        try:
            with self._with_all(meeting):
                self._naming.clear_the_way()
            with self._naming.numbered_together(), self._with_all(meeting):
                place, models, written = self._save_the_rest(stub, output_dir, *args, **kwargs)
        except (OSError, RuntimeError) as error:
            return self._refused(error)
        tree = state_of(self._accelerator, models, written, step)
        if meeting.together:  # a process that saves alone, or comes too late, has nobody to wait for
            run.choose(step, tree)  # from here on nobody waits: where one cannot measure, the others leave
        named = not self._naming.automatic
        with self._until_whole(meeting) if named else nullcontext():
            if self._accelerator.is_main_process:
                target = Path(place).resolve()  # a link that the user made stays one
                run.save(target, step, tree, note={SAVE: stub[SAVE]})
                self._former.remove(run, Path(place))
                self._naming.rotate(run)
                if named:  # it is the user's to rename or copy at once
                    run.wait()
        steps.saved()
        return place

    def load_state(
        self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """As ``Accelerator.load_state``; native checkpoints are loaded natively.

        Every process calls it.  Under automatic naming all load what is the newest to the main process.

        Raises:
            EmptyStoreError: nothing to load under automatic naming.
            NotAStoreError: a save that was never committed, also over another's files, or another
                framework's checkpoint.
            StateMismatchError: model or optimizer are not those that were saved; nothing was changed.
        """
        self._run.wait()
        folder = self._naming.folder(input_dir)
        if require_ours(folder):
            require_one_save(folder)
            give = partial(self._give_weights, (load_kwargs or {}).get("weights_only", True))
            hook = _registered(self._accelerator.register_load_state_pre_hook, give)
            with ignoring_stubs(self._held()), hook:
                self._load(str(folder), load_kwargs, **kwargs)
        else:
            self._load(str(folder), load_kwargs, **kwargs)
            self._steps.restored(steps_of(inner_optimizers(self._accelerator)))
        self._naming.go_on_after(folder)

    def end_training(self) -> None:
        """As ``Accelerator.end_training``, after the save in the background and its line in the log."""
        self._run.wait()
        self._end()

    def free_memory(self, *objects: Any) -> Any:
        """As ``Accelerator.free_memory``, and of ``clear``: nothing here holds on to model and optimizer."""
        try:
            self._run.close()  # first, as Accelerate then collects what nobody holds
        except DynaQuantError:
            self._free(*objects)
            raise
        return self._free(*objects)

    def close(self) -> None:
        """Waits, and gives the accelerator its own methods back."""
        for name in (*REPLACED, PLACE):
            vars(self._accelerator).pop(name, None)
        vars(self._accelerator).update(self._before)
        with ExitStack() as last:
            last.callback(self._run.close)
            self._steps.close()

    @contextmanager
    def _with_all(self, meeting: Meeting) -> Iterator[None]:
        """What fails inside all hear of, and every file is there at its end; one alone waits for nobody."""
        if not meeting.together:
            yield
            return
        with on_all_ranks(meeting.step), self._everyone():
            yield

    @contextmanager
    def _until_whole(self, meeting: Meeting) -> Iterator[None]:
        """What fails inside all hear of, and nobody goes on before; one alone waits for nobody."""
        if not meeting.together:
            yield
            return
        with on_all_ranks(meeting.step):
            yield
        self._accelerator.wait_for_everyone()  # a main process that ends takes along what the others read

    @contextmanager
    def _everyone(self) -> Iterator[None]:
        """Waits at its end for all processes, failed or not, however long: then every file is there."""
        try:
            yield
        except Exception:
            self._accelerator.wait_for_everyone()
            raise
        self._accelerator.wait_for_everyone()

    def _watch(self) -> None:
        """Watches what is prepared and registered now."""
        modules = modules_of(self._accelerator, self._accelerator._models)
        watched = modules if len(modules) != 1 else next(iter(modules.values()))
        self._run.watch(watched, inner_optimizers(self._accelerator), evaluate=self._evaluate)

    def _counted(self) -> list[Optimizer]:
        """The optimizers that are prepared now."""
        return inner_optimizers(self._accelerator)

    def _refused(self, error: Exception) -> None:
        """What the system refuses is one sentence, or in the log where no other rank would wait."""
        if not is_refusal(error):
            raise error
        message = f"the checkpoint of step {self.step} cannot be written: {error}"
        if self._raises or self._accelerator.num_processes > 1:
            raise StorageError(message) from error
        logger.warning("training goes on: %s", message)

    def _save_the_rest(
        self, stub: Mapping[str, Any], output_dir: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, list[nn.Module], list[nn.Module]]:
        """Lets Accelerate write everything but weights and optimizers, for which it writes ``stub``.

        Returns:
            The folder, the models whose weights no hook of the user has kept to itself, and `written_of`.
        """
        models: list[nn.Module] = []
        written: list[nn.Module] = []

        def take_weights(all_models: list[nn.Module], weights: list[Any], folder: str) -> None:
            models.extend(whose(weights, all_models))
            written.extend(written_of(weights, all_models, models))
            weights.clear()
            if self._accelerator.is_main_process:
                self._former.sign(Path(folder))

        hook = _registered(self._accelerator.register_save_state_pre_hook, take_weights)
        claimed = self._naming.claimed(self._former.look)
        with self._naming.nothing_goes(), claimed, giving_stubs(self._held(), stub), hook:
            return self._save(output_dir, *args, **kwargs), models, written

    def _give_weights(self, weights_only: bool, models: list[nn.Module], folder: str) -> None:
        tree = self._run.load(folder, weights_only=weights_only)
        own = [path for path in weights_in(Path(folder)) if not is_sign(path)]
        if tree["model"] or not own:
            put_back(self._accelerator, models, tree)
            models.clear()
        else:  # a hook of the user has written all weights under Accelerate's own names
            put_back(self._accelerator, [], tree)
        self._steps.restored(tree["step"])

    def _held(self) -> list[Any]:
        """The objects whose state lies in our checkpoint."""
        return [*self._accelerator._optimizers, *averages(self._accelerator)]


def _of_the_model(evaluate: Callable[..., Any], accelerator: Any) -> Callable[..., Any]:
    """``evaluate`` of the one prepared model without its averages; of all by name where there are more.

    What it reads of the accelerator's loaders, it reads inside of the call, also where it gives a generator.
    """

    @wraps(evaluate)
    def measure(*given: Any) -> Any:
        models = tuple(map(_models, given))
        try:
            with as_before(accelerator):
                found = evaluate(*models)
                return list(found) if isinstance(found, Iterator) else found
        except (TypeError, AttributeError, KeyError) as error:
            if not models or isinstance(models[0], nn.Module):
                raise
            raise EvaluationError(
                f"evaluate raised {type(error).__name__}: {error}; of several models it is given a mapping "
                f"of {', '.join(models[0])}."
            ) from error

    return measure


def _models(watched: Any) -> Any:
    if isinstance(watched, nn.Module):
        return watched
    models = [module for name, module in watched.items() if name.startswith("model_")]
    return models[0] if len(models) == 1 else watched


@contextmanager
def _registered(register: Callable[[Callable[..., None]], Any], hook: Callable[..., None]) -> Iterator[None]:
    """``hook`` is called inside the context, after all that the user has registered."""
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()
