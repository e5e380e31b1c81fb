"""``dynaquant log`` and ``dynaquant show``: what is in a store, and what one checkpoint is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaquant_core.cli.messages import say
from dynaquant_core.cli.output import (
    Json,
    brief_config,
    config_text,
    counted,
    emit,
    plain,
    print_table,
    share,
    size,
    times,
    write_line,
)
from dynaquant_core.cli.source import PathArgument, Source, StepOption, open_source, read_one
from dynaquant_core.errors import EmptyStoreError
from dynaquant_core.store import CheckpointInfo

__all__ = ["info_data", "log", "show"]


def log(path: PathArgument, as_json: Json = False) -> None:
    """List the checkpoints of a store or of a framework's output folder, oldest first."""
    source = open_source(path)
    listed = source.listed()
    infos = [info for info, _ in listed]
    skipped = source.skipped()
    if not infos:
        raise EmptyStoreError(
            f"{path}: none of its {len(skipped)} files can be read; the first: {skipped[0]}"
        )
    use = source.disk()
    if as_json:
        checkpoints = [info_data(info) | folder_data(folder) for info, folder in listed]
        emit(
            {"path": str(path), "checkpoints": checkpoints, "skipped": skipped}
            | ({"disk": use} if use else {})
        )
        return
    columns: tuple[str, ...] = (
        "step",
        "<kind",
        "stored",
        "ratio",
        "weights",
        "worse",
        "<met",
        "tried",
        "held",
        "<config",
    )
    rows = [log_row(info) for info in infos]
    if any(info.stale is not None for info in infos):
        columns = (*columns, "stale")
        rows = [(*row, share(info.stale)) for row, info in zip(rows, infos, strict=True)]
    if any(folder for _, folder in listed):
        columns = (*columns, "<folder")
        names = [folder_name(folder, path) for _, folder in listed]
        rows = [(*row, name) for row, name in zip(rows, names, strict=True)]
    print_table(str(path), columns, rows)
    raw, stored = (sum(getattr(info, name) for info in infos) for name in ("raw_bytes", "stored_bytes"))
    write_line(
        f"{counted(len(infos), 'checkpoint')}, {size(stored)} instead of {size(raw)} ({times(raw, stored)})"
    )
    if use:
        write_line(
            f"on disk {size(use.linked)}, what folders share counted once; "
            f"{size(use.copied)} if each is copied elsewhere"
        )
    for line in skipped:
        say(f"warning: {line}")


def show(
    path: PathArgument,
    step: StepOption = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor and its streams.")] = False,
    as_json: Json = False,
) -> None:
    """Show one checkpoint: its parts, configuration, quality and where the time went."""

    def look(source: Source) -> tuple[CheckpointInfo, list[dict[str, Any]], Path | None]:
        info = source.info(step)
        return info, source.tensors(info.step) if tensors else [], source.folders().get(info.step)

    info, listed, folder = read_one(path, step, look)
    if as_json:
        emit(info_data(info) | folder_data(folder) | ({"tensors": listed} if tensors else {}))
        return
    told = [("folder", str(folder))] if folder else []
    print_table(f"{path}: step {info.step}", ("<what", "<value"), facts(info) + told)
    print_table("parts", ("<part", "raw", "stored", "ratio"), part_rows(info.parts, info))
    if info.seconds:
        print_table("seconds", ("<stage", "seconds"), [(k, f"{v:.3f}") for k, v in info.seconds.items()])
    if tensors:
        columns = ("<tensor", "<dtype", "<shape", "<role", "<part", "raw", "stored", "<codecs")
        print_table("tensors", columns, [tensor_row(entry) for entry in listed])
        if any(entry["raw_bytes"] and not entry["stored_bytes"] for entry in listed):
            write_line("0 B: stored together with its neighbours.")


def info_data(info: CheckpointInfo) -> dict[str, Any]:
    """A checkpoint's record as JSON-ready data, the ratio included."""
    data: dict[str, Any] = plain(info.as_dict())
    return data


def folder_data(folder: Path | None) -> dict[str, str]:
    """Where a checkpoint lies, for JSON; nothing where it has no folder of its own."""
    return {"folder": str(folder)} if folder else {}


def folder_name(folder: Path | None, path: Path) -> str:
    """Where a checkpoint lies, as seen from ``path``; a dash for what another one builds on."""
    if folder is None:
        return "-"
    below = folder != path and folder.is_relative_to(path)  # not where a file stands for the folder beside it
    return str(folder.relative_to(path)) if below else folder.name


def log_row(info: CheckpointInfo) -> tuple[str, ...]:
    """One line of the log."""
    weights = info.parts.get("weight", {"raw_bytes": 0, "stored_bytes": 0})
    return (
        str(info.step),
        kind_text(info),
        size(info.stored_bytes),
        times(info.raw_bytes, info.stored_bytes),
        times(weights["raw_bytes"], weights["stored_bytes"]),
        share(info.degradation),
        yes_no(info.met),
        str(info.evaluations),
        f"{info.seconds['held']:.2f} s" if "held" in info.seconds else "-",
        brief_config(info.config),
    )


def facts(info: CheckpointInfo) -> list[tuple[str, str]]:
    """What `show` says about a checkpoint as a whole."""
    return [
        ("kind", kind_text(info)),
        ("commit", str(info.sequence)),
        ("size", f"{size(info.stored_bytes)} instead of {size(info.raw_bytes)}"),
        ("ratio", times(info.raw_bytes, info.stored_bytes)),
        ("method", f"{info.method} {config_text(info.options)}" if info.options else info.method),
        ("configuration", config_text(info.config)),
        ("quality", config_text(info.quality)),
        ("degradation", share(info.degradation, 3)),
        ("threshold met", yes_no(info.met)),
        ("movement a restore loses", share(info.stale)),
        (
            "candidates evaluated",
            str(info.evaluations) + (", exhaustive search" if info.report.get("exhaustive") else ""),
        ),
        ("weights kept exact", ", ".join(info.exact) or "-"),
    ]


def part_rows(parts: Any, info: CheckpointInfo) -> list[tuple[str, str, str, str]]:
    """One row a part, then their sum."""
    counted = [(name, part["raw_bytes"], part["stored_bytes"]) for name, part in parts.items()]
    counted.append(("all", info.raw_bytes, info.stored_bytes))
    return [(name, size(raw), size(stored), times(raw, stored)) for name, raw, stored in counted]


def tensor_row(entry: dict[str, Any]) -> tuple[str, ...]:
    """One line of ``show --tensors``."""
    shape = "x".join(map(str, entry["shape"])) or "scalar"
    numbers = size(entry["raw_bytes"]), size(entry["stored_bytes"])
    return (
        entry["name"],
        entry["dtype"],
        shape,
        entry["role"],
        entry["part"],
        *numbers,
        " ".join(entry["codecs"]),
    )


def kind_text(info: CheckpointInfo) -> str:
    """Key, or delta and the step it was written against."""
    return info.kind if info.base_step is None else f"{info.kind} on {info.base_step}"


def yes_no(value: bool | None) -> str:
    """A dash where nothing was measured."""
    return {None: "-", True: "yes", False: "NO"}[value]
