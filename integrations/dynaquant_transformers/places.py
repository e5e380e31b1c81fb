"""Where a checkpoint is made, and where it stands once it is whole.

The Trainer takes every folder ``checkpoint-N`` for a checkpoint.  So one that is still being written lies in
a hidden folder of the output folder, and gets its name when it is committed.  The newest one stays there as
well (hard links), because the next one builds on it and the Trainer may remove what bears a name.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from dynaquant_core.errors import DynaQuantError, EmptyStoreError, StorageError
from dynaquant_core.plugins import MARKER, is_checkpoint
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.small_files import sync_files, sync_folder
from dynaquant_transformers.native import holds_state, is_ours, is_state

__all__ = ["MAKING", "Place", "clear_workshop", "finish_leftovers", "newest_whole", "require_whole"]

logger = logging.getLogger(__name__)

#: Folder of checkpoints in the making; who looks for checkpoints passes over hidden folders.
MAKING: Final = ".dynaquant"

#: What the Trainer puts into the folder of a checkpoint that it makes on SIGTERM, until it is whole.
INCOMPLETE: Final = "checkpoint-is-incomplete.txt"

#: Beside where a checkpoint is made, once it has had its name: who takes that away means it.
NAMED: Final = "named"

_NUMBERED = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one checkpoint.

    Args:
        output: the folder in which the Trainer keeps its checkpoints; absolute, as a script may go elsewhere.
        step: completed optimizer steps.
    """

    output: Path
    step: int

    @property
    def workshop(self) -> Path:
        """What the Trainer is told to be its output folder while the checkpoint is made."""
        return self.output / MAKING / str(self.step)

    @property
    def making(self) -> Path:
        """Where it is made."""
        return self.workshop / self.final.name

    @property
    def final(self) -> Path:
        """Where it stands once it is whole."""
        return self.output / f"{PREFIX_CHECKPOINT_DIR}-{self.step}"

    def clear(self) -> None:
        """Removes what was made here; what has its name stays."""
        shutil.rmtree(self.workshop, ignore_errors=True)

    def publish(self) -> bool:
        """Gives the checkpoint its name if it is whole; of what had the name before, the state goes.

        What others put there, which is neither weights nor optimizer, stays beside it as it would natively.

        When this returns, the checkpoint survives a power loss under its name.

        Returns:
            Whether it is whole.
        """
        if not is_checkpoint(self.making):
            return False
        new, old = self.workshop / "new", self.workshop / "old"
        if old.exists() and not os.path.lexists(self.final):
            old.rename(self.final)  # a process has died between the two renames below
        for rubbish in (new, old):
            shutil.rmtree(rubbish, ignore_errors=True)
        named = _linked(self.making, new)
        _bring_along(self.final, named)
        sync_files(named)
        if os.path.lexists(self.final):
            self.final.rename(old)
        named.rename(self.final)
        sync_folder(self.output)  # older ones go because this one is there
        with suppress(OSError):  # the checkpoint is there all the same
            (self.workshop / NAMED).touch()
        shutil.rmtree(old, ignore_errors=True)
        return True

    def has_files(self) -> bool:
        """Whether somebody has put anything where it is made, or where it will stand."""
        return self.final.exists() or bool(self.making.is_dir() and any(self.making.iterdir()))

    def bring_out(self) -> None:
        """Puts into the output folder what lies beside where it is made, before it has its name."""
        beside = [file for file in self.workshop.iterdir() if file != self.making]
        for file in [inside for top in beside for inside in (top, *top.rglob("*")) if not inside.is_dir()]:
            target = self.output / file.relative_to(self.workshop)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)

    def files(self) -> set[Path]:
        """What lies where it is made, by paths from there."""
        return {file.relative_to(self.making) for file in self.making.rglob("*")}

    def take_late(self, known: Container[Path]) -> None:
        """Puts into the checkpoint that has its name what came to where it was made since.

        Args:
            known: what lay there before.  Of it, what is not in the checkpoint any more was taken out since;
                and so may the whole checkpoint have been: then nothing comes to its place.
        """
        if self.final.is_dir():
            _bring_along(self.making, self.final, known)

    def name_best(self, state: TrainerState, output: str, lost: Container[Place]) -> None:
        """Tells the Trainer's state the final name of the best checkpoint, this one or one that is there.

        Args:
            state: of the Trainer.
            output: how the Trainer calls the folder.
            lost: what this training could not save; a folder of such a name is another training's.
        """
        if not state.best_global_step:
            return
        best = Place(self.output, state.best_global_step)
        if best.making.exists() or (best.final.exists() and best not in lost):
            state.best_model_checkpoint = str(Path(output, best.final.name))


def finish_leftovers(output: Path) -> None:
    """Gives checkpoints that a dead process had committed their names, and removes what it had not."""
    shop = output / MAKING
    for folder in shop.iterdir() if shop.is_dir() else ():
        place = Place(output, int(folder.name)) if folder.name.isdecimal() else None
        if place is not None and not _is_done(place) and place.publish():
            logger.warning("%s was committed by a process that ended before it had its name", place.final)
    clear_workshop(output)


def clear_workshop(output: Path) -> None:
    """Removes checkpoints in the making; the lock of who makes them stays."""
    shop = output / MAKING
    for folder in shop.iterdir() if shop.is_dir() else ():
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)


def newest_whole(output: Path, read: Callable[[Path], object]) -> Path | None:
    """The newest checkpoint that can be read, native ones included; None where there is none at all.

    Args:
        output: the folder in which the Trainer keeps its checkpoints.
        read: reads one of ours, or raises what is wrong with it.

    Raises:
        EmptyStoreError: there are checkpoints and none of them is whole; says why.
    """
    reasons: list[str] = []
    for _, folder in sorted(_numbered(output), reverse=True):
        reason = _damage(folder, read)
        if reason is None:
            for skipped in reasons:
                logger.warning("passed over: %s", skipped)
            return folder
        reasons.append(reason)
    if reasons:
        raise EmptyStoreError(f"no checkpoint in {str(output)!r} is whole: {'; '.join(reasons)}")
    return None


def require_whole(folder: Path, read: Callable[[Path], object]) -> None:
    """Reads the checkpoint that another rank has found.

    Raises:
        StorageError: it is not whole here; says why.
    """
    reason = _damage(folder, read)
    if reason is not None:
        raise StorageError(
            f"rank 0 resumes from {str(folder)!r}, which cannot be read here ({reason}); all ranks have to "
            "go on from one checkpoint: see that every node has the same folder, and start again."
        )


def _damage(folder: Path, read: Callable[[Path], object]) -> str | None:
    """Why a checkpoint cannot be read; None for a whole one."""
    if not (folder / TRAINER_STATE_NAME).is_file():  # the last thing that the Trainer writes
        return f"{folder.name} has no {TRAINER_STATE_NAME}, its save was interrupted"
    if not is_ours(folder):  # a native one: whether its state is whole is the Trainer's to judge
        return None if holds_state(folder) else f"{folder.name} holds neither weights nor an optimizer"
    try:
        read(folder)
    except DynaQuantError as error:
        return f"{folder.name}: {error}"
    return None


def _numbered(output: Path) -> Iterator[tuple[int, Path]]:
    """Step and folder of everything that is named like a checkpoint."""
    for folder in output.iterdir() if output.is_dir() else ():
        found = _NUMBERED.fullmatch(folder.name)
        if found and folder.is_dir():
            yield int(found[1]), folder


def _is_done(place: Place) -> bool:
    """Whether the checkpoint that was made there has had its name already, or a newer one has it."""
    if (place.workshop / NAMED).exists():
        return True
    try:
        if is_ours(place.final):  # no save of ours begins before what was committed has its name
            return Marker.read(place.final).link == Marker.read(place.making).link
        state, marker = place.final / TRAINER_STATE_NAME, place.making / MARKER
        return bool(state.stat().st_mtime_ns > marker.stat().st_mtime_ns)
    except (DynaQuantError, FileNotFoundError):
        return False


def _bring_along(old: Path, new: Path, known: Container[Path] = ()) -> None:
    """Puts into ``new`` what others have put into ``old``; no file that ``new`` has, no state, none known."""
    adapters = {config.parent.name for config in new.glob(f"*/{ADAPTER_CONFIG_NAME}")}
    for file in old.rglob("*") if old.is_dir() else ():
        inside = file.relative_to(old)
        target = new / inside
        passed = inside in known or is_state(file, old, adapters) or file.name == INCOMPLETE
        if passed or file.is_dir() or os.path.lexists(target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target, follow_symlinks=False)


def _linked(source: Path, target: Path) -> Path:
    """A second folder of the same files; ``source`` itself where files cannot have two names."""
    try:
        shutil.copytree(source, target, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(target, ignore_errors=True)
        return source
    return target
