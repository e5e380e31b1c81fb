"""The machine of a training: beside its settings and its data, what decides its last bits."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.experiments.config.language import HFModel, MiniLMModel
from dynaquant_core.experiments.config.section import Section
from dynaquant_core.experiments.events import Event, find
from dynaquant_core.experiments.trainer import device_name

__all__ = [
    "Machine",
    "accelerator",
    "library_of",
    "lives_on",
    "machine_here",
    "machines_of",
    "processor",
    "threads_here",
]

#: ``torch`` (its version), ``device``, ``processor``, ``capability`` (of the processor, that torch uses),
#: ``threads`` and, where a model comes from there, ``transformers`` (its version), JSON-ready.
Machine = Mapping[str, Any]

#: What torch can be told of a processor.
CAPABILITIES = frozenset({"DEFAULT", "AVX2", "AVX512", "VSX", "ZVECTOR"})


def machine_here(threads: int | None = None, model: Section | None = None) -> Machine:
    """This one, as a process that begins now finds it: settings of later than torch's import count.

    Args:
        threads: of the process that trains; None: this one's.
        model: its section, where the library that it comes from counts too.
    """
    return {
        "torch": torch.__version__,
        "device": accelerator(),
        "processor": processor(),
        "capability": _capability(),
        "threads": threads or torch.get_num_threads(),
        **library_of(model),
    }


def library_of(model: Section | None) -> dict[str, str]:
    """Name and version of the library that makes a model, beside torch; nothing of one that is made here."""
    if not isinstance(model, (HFModel, MiniLMModel)):
        return {}
    try:
        return {"transformers": version("transformers")}
    except PackageNotFoundError:  # who makes the model says what to do
        return {}


def threads_here() -> int:
    """How many a process that begins now would have."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(said) if said.isdecimal() and int(said) else torch.get_num_threads()


def accelerator() -> str:
    """Where training happens: a GPU's model, or ``"cpu"``."""
    return "cpu" if device_name() == "cpu" else torch.cuda.get_device_name()


def processor() -> str:
    """Linux names the processor in a file; elsewhere the platform module does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def lives_on(diary: Sequence[Event]) -> list[Machine]:
    """The machines that made a run as it ended, each once: of its lives since it last began with nothing.

    Empty where one is not known: diaries of earlier versions do not say.

    Example:
        >>> one, other = {"threads": 1}, {"threads": 2}
        >>> life = {"event": "start", "restored": 0}
        >>> lives_on([life | {"machine": one}, life | {"machine": other}])
        [{'threads': 2}]
        >>> lives_on([life | {"machine": one}, {**life, "restored": 10, "machine": other}])
        [{'threads': 1}, {'threads': 2}]
        >>> lives_on([life])
        []
    """
    starts = find(diary, "start")
    begun = max((place for place, start in enumerate(starts) if not start["restored"]), default=0)
    found = [start.get("machine") for start in starts[begun:]]
    return [] if None in found else _once(found)


def machines_of(diary: Sequence[Event]) -> list[Machine]:
    """All that a run was on, each once, in their order, as far as they are known."""
    return _once([start["machine"] for start in find(diary, "start") if start.get("machine")])


def _capability() -> str:
    """Torch takes a name that it knows at its word."""
    said = os.environ.get("ATEN_CPU_CAPABILITY", "").upper()
    return said if said in CAPABILITIES else torch.backends.cpu.get_cpu_capability()


def _once(machines: Sequence[Any]) -> list[Machine]:
    return [machine for place, machine in enumerate(machines) if machine not in machines[:place]]
