"""What one training process is asked to do: a folder with a job description, a diary and a store."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynaquant_core.errors import ExperimentError, StorageError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config.experiment import Experiment, validate

__all__ = ["Job", "write_json"]


@dataclass(frozen=True, slots=True)
class Job:
    """A run in a folder of its own.

    Args:
        folder: holds ``job.json``, ``events.jsonl``, ``process.log`` and, where it saves, ``store/``.
        experiment: one run (one seed, no grid).
        saves: False for a baseline, which trains without checkpoints.
        records: whether exact states are written beside the diary (`tape`).
        recording: folder of the recording that is replayed; None: the run is trained.
        threads: of its process; None: as many as there are (jobs of earlier versions).  They decide about the
            last bits of a training.
        start: weights that a fine-tuning begins with (`pretraining.read_weights`); None: the model's own.
        content: digest of what a run of a grid reads (`pretraining.content`); None: not noted.
    """

    folder: Path
    experiment: Experiment
    saves: bool
    records: bool = False
    recording: Path | None = None
    threads: int | None = None
    start: Path | None = None
    content: str | None = None

    @property
    def diary(self) -> Path:
        """File of events (`events`)."""
        return self.folder / "events.jsonl"

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return bool(events.find(events.read(self.diary), "final"))

    @property
    def recorded(self) -> Path:
        """The recorded training's diary, kept with its replay: the recording may be removed then."""
        return self.folder / "recorded.jsonl"

    @property
    def log(self) -> Path:
        """What the process says on its standard error."""
        return self.folder / "process.log"

    @property
    def store(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "store"

    def write(self) -> None:
        """Puts the job description into its folder, which is made.

        Raises:
            StorageError: the system refuses.
        """
        recording = None if self.recording is None else str(self.recording)
        settings = {
            "saves": self.saves,
            "records": self.records,
            "recording": recording,
            "threads": self.threads,
            "start": None if self.start is None else str(self.start),
            "content": self.content,
        }
        write_json(self.folder / "job.json", {"experiment": self.experiment.as_dict(), **settings})

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job in a folder.

        Raises:
            ExperimentError: there is none.
            ConfigError: it is not valid.
        """
        path = folder / "job.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            recording, start = data.get("recording"), data.get("start")  # earlier versions only train
            return cls(
                folder,
                validate(data["experiment"], str(path)),
                saves=bool(data["saves"]),
                records=bool(data.get("records", False)),
                recording=None if recording is None else Path(recording),
                threads=data.get("threads"),
                start=None if start is None else Path(start),
                content=data.get("content"),
            )
        except (
            OSError,
            json.JSONDecodeError,
            UnicodeDecodeError,
            AttributeError,
            KeyError,
            TypeError,
        ) as error:
            raise ExperimentError(
                f"{path}: no job of an experiment ({error}); remove its folder, and it is made anew."
            ) from None


def write_json(path: Path, data: Any) -> None:
    """Writes JSON in one piece: a reader sees the old file or the new one, whoever else writes it.

    Raises:
        StorageError: the system refuses.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # what a full disk took of it
            partial.unlink()
        raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None
