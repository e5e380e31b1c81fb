"""``dynaquant export``, ``import`` and ``compact``: into other people's files, out of them, and re-basing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaquant_core.cli.choices import (
    BinsOption,
    ExactOption,
    MethodOption,
    MomentsOption,
    config_of,
    method_of,
)
from dynaquant_core.cli.native import read_native, step_of
from dynaquant_core.cli.output import Json, emit, size, times, write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.cli.source import PathArgument, StepOption, open_source
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.exporters import resolve_exporter

__all__ = ["compact", "export", "import_native"]

OutOption = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="File or folder to write.")]
ToOption = Annotated[
    str | None,
    typer.Option("--to", help="pt, safetensors or an installed one; default: by OUT's ending."),
]


def export(path: PathArgument, out: OutOption, step: StepOption = None, to: ToOption = None) -> None:
    """Write one checkpoint as torch.save or safetensors, or for a framework."""
    write = resolve_exporter(to, out)
    source = open_source(path)
    with working(f"exporting {path} to {out}"):
        info = source.info(step)
        write(source.load(info.step), out)
    write_line(f"{out}: step {info.step}")


def import_native(
    native: Annotated[Path, typer.Argument(metavar="NATIVE", help="A torch.save or safetensors file.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the new store.")],
    step: Annotated[
        int | None, typer.Option(help="Step to save it as; default: the file's own, else 0.")
    ] = None,
    bins: BinsOption = None,
    method: MethodOption = None,
    moments: MomentsOption = "8bit",
    exact: ExactOption = None,
    as_json: Json = False,
) -> None:
    """Start a store from a native checkpoint."""
    config = config_of(bins=bins)
    opened = CheckpointStore(store, method=method_of(method), moments=moments, exact=tuple(exact or ()))
    with working(f"importing {native}"):
        state = read_native(native)
        info = opened.save(step_of(state) if step is None else step, state, config=config)
    if as_json:
        emit(
            {
                "store": str(store),
                "step": info.step,
                "raw_bytes": info.raw_bytes,
                "stored_bytes": info.stored_bytes,
            }
        )
        return
    saved = f"{size(info.stored_bytes)} instead of {size(info.raw_bytes)}"
    write_line(f"{store}: step {info.step}, {saved} ({times(info.raw_bytes, info.stored_bytes)})")


def compact(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A store.")],
    max_chain: Annotated[int, typer.Option(help="Longest chain to leave; 0: each stands alone.")] = 8,
    keep_last: Annotated[int | None, typer.Option(help="Keep the last N checkpoints.")] = None,
    keep_every: Annotated[int | None, typer.Option(help="Keep every step divisible by N.")] = None,
    keep_within: Annotated[str | None, typer.Option(help="Disk budget, as 100GB.")] = None,
    as_json: Json = False,
) -> None:
    """Free space and shorten chains; what stays decodes to the same bits."""
    open_source(path)  # refuses what is no store before anything is made or locked
    store = CheckpointStore(
        path, max_chain=max_chain, keep_last=keep_last, keep_every=keep_every, keep_within=keep_within
    )
    before = sizes_of(store)
    with working(f"compacting {path}, {len(before)} checkpoints"):
        store.compact()
    after = sizes_of(store)
    if as_json:
        emit({"path": str(path), "before": before, "after": after})
        return
    was, now = (f"{len(sizes)} checkpoints, {size(sum(sizes.values()))}" for sizes in (before, after))
    write_line(f"{path}: {was} before; {now} now")


def sizes_of(store: CheckpointStore) -> dict[int, int]:
    """Step -> bytes of its file."""
    return {step: store.info(step).stored_bytes for step in store.steps()}
