"""``dynaquant export`` and ``compact``: into other people's files, and re-basing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaquant_core.cli.folders import OutputSource
from dynaquant_core.cli.messages import say
from dynaquant_core.cli.output import Json, counted, emit, share, size, write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.cli.source import PathArgument, Source, StepOption, open_source, read_one
from dynaquant_core.cli.stored import StoreSource
from dynaquant_core.errors import NotAStoreError
from dynaquant_core.plugins.rest import Rest, split
from dynaquant_core.state.leaves import dotted
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.store.best import best_of, measured
from dynaquant_core.store.described import PLAIN, description_of
from dynaquant_core.store.disk import path_from, require_another
from dynaquant_core.store.export import brief, to_safetensors
from dynaquant_core.store.exporters import Exporter, resolve_exporter, taken

__all__ = ["OutOption", "ToOption", "TrustOption", "compact", "export", "written"]

OutOption = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="File to write, which is replaced, or a folder to make.",
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", help="pt, safetensors or an installed one; default: by OUT's ending."),
]
BestOption = Annotated[
    bool,
    typer.Option("--best", help="The checkpoint with the best measured quality, instead of the newest."),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Read the framework's own objects too; that may run code, so trust where they are from.",
    ),
]


def export(
    path: PathArgument,
    out: OutOption,
    step: StepOption = None,
    best: BestOption = False,
    to: ToOption = None,
    trust: TrustOption = False,
) -> None:
    """Write one checkpoint as torch.save or safetensors, or for a framework."""
    if best and step is not None:
        raise typer.BadParameter("give --best or --step, not both")
    require_another(path_from("OUT", out), path)
    write = resolve_exporter(to, out)
    with working(f"exporting {path} to {out}"):
        source, info, state = looked_up(path, step, best=best, trust=trust)
        if write is to_safetensors:
            state, rest = split(state)  # frameworks put objects there that are no tensors
            if rest.objects:
                say(f"warning: {out}: safetensors holds tensors alone; left out: {brief(places(rest))}")
        written(write, state, out, info, source.folders().get(info.step))
    write_line(f"{out}: step {info.step}" + (f", {figures(info)}" if best else ""))


def places(rest: Rest) -> list[str]:
    """Where the objects lay that are no tensors."""
    return [dotted(place) for place in rest.objects]


def looked_up(path: Path, step: int | None, *, best: bool, trust: bool) -> tuple[Source, CheckpointInfo, Any]:
    """The step that is meant, read whole."""

    def look(source: Source) -> tuple[Source, CheckpointInfo, Any]:
        info = best_of(source.infos(), str(path)) if best else source.info(step)
        return source, info, source.whole(info.step, trust=trust)

    return read_one(path, step, look)


def figures(info: CheckpointInfo) -> str:
    """What was measured of a checkpoint, in words.

    Example:
        >>> quality = {"reference": 2.0, "search": 2.01}
        >>> figures(CheckpointInfo(1, 0, "key", None, "exact", None, 8, 8, {}, quality, 0.005))
        'the best: 2.01 as stored, 2 before (0.50% worse)'
    """
    reference = info.quality.get("reference")
    before = f", {reference:.6g} before" if isinstance(reference, (int, float)) else ""
    worse = info.degradation
    if worse is not None:
        before += f" ({share(abs(worse))} {'worse' if worse >= 0 else 'better'})"
    return f"the best: {measured(info):.6g} as stored{before}"


def written(write: Exporter, state: Any, out: Path, info: CheckpointInfo, folder: Path | None = None) -> None:
    """Writes a state by an exporter that is given what it takes, and warns of what has no place in its file.

    Args:
        write: the exporter.
        state: as loaded.
        out: where it goes.
        info: of the checkpoint.
        folder: the checkpoint's own, with what a framework put beside it.
    """
    said = description_of(info.report)
    given = taken(write, source=folder, metadata=said)
    write(state, out, **given)
    lost = [] if "metadata" in given else [key for key in said if key not in PLAIN]
    if lost:
        say(f"warning: {out}: left out, as only safetensors has a place for such metadata: {brief(lost)}")


def compact(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A store.")],
    max_chain: Annotated[int, typer.Option(help="Longest chain to leave; 0: each stands alone.")] = 8,
    keep_last: Annotated[int | None, typer.Option(help="Keep the last N checkpoints.")] = None,
    keep_every: Annotated[int | None, typer.Option(help="Keep the first from each multiple of N on.")] = None,
    keep_within: Annotated[str | None, typer.Option(help="Disk budget, as 100GB.")] = None,
    as_json: Json = False,
) -> None:
    """Free space and shorten chains; what stays decodes to the same bits."""
    if isinstance(open_source(path), OutputSource):  # that refuses what is no store, too
        raise NotAStoreError(
            f"{path}: the checkpoints of this output folder share their files; the framework's own limits "
            "remove them, and compact works on a store, or on one checkpoint's folder."
        )
    with CheckpointStore(
        path, max_chain=max_chain, keep_last=keep_last, keep_every=keep_every, keep_within=keep_within
    ) as store:
        before = sizes_of(store)
        with working(f"compacting {path}, {counted(len(before), 'checkpoint')}"):
            left = store.compact()
        after = sizes_of(store)
    damaged = StoreSource(path).skipped()  # so damaged that they tell no step, which `left` would name
    if as_json:
        emit({"path": str(path), "before": before, "after": after, "left": left, "damaged": damaged})
        raise typer.Exit(1 if left or damaged else 0)
    was, now = (
        f"{counted(len(sizes), 'checkpoint')}, {size(sum(sizes.values()))}" for sizes in (before, after)
    )
    write_line(f"{path}: {was} before; {now} now")
    if left:
        say(f"{path}: as they were, as they or files below them are damaged: {', '.join(map(str, left))}")
    for line in damaged:
        say(f"warning: {line}")
    if left or damaged:
        raise typer.Exit(1)


def sizes_of(store: CheckpointStore) -> dict[int, int]:
    """Step -> bytes of its file."""
    return {step: store.info(step).stored_bytes for step in store.steps()}
