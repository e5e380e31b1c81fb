"""``dynaquant compress`` and ``decompress``: one native file to one .dq file, and back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from dynaquant_core.cli.choices import (
    BinsOption,
    EmbeddingBinsOption,
    ExactOption,
    MethodOption,
    MomentsOption,
    ProtectOption,
    PruneOption,
    ScaleOption,
    config_of,
    method_of,
)
from dynaquant_core.cli.convert import OutOption, ToOption, written
from dynaquant_core.cli.look import part_rows
from dynaquant_core.cli.output import Json, emit, print_table, write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.cli.stored import FileSource
from dynaquant_core.files import load_file, save_file
from dynaquant_core.store import CheckpointInfo
from dynaquant_core.store.described import read_description
from dynaquant_core.store.disk import path_from, require_another
from dynaquant_core.store.exporters import resolve_exporter
from dynaquant_core.store.native import read_native
from dynaquant_core.store.single import begin_file

__all__ = ["compress", "decompress"]


def compress(
    native: Annotated[Path, typer.Argument(metavar="IN", help="A torch.save or safetensors file.")],
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.dq", help="File to write.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be saved.")] = False,
    bins: BinsOption = None,
    prune: PruneOption = None,
    protect: ProtectOption = None,
    embedding_bins: EmbeddingBinsOption = None,
    scale: ScaleOption = None,
    method: MethodOption = None,
    moments: MomentsOption = "8bit",
    exact: ExactOption = None,
    as_json: Json = False,
) -> None:
    """Compress one native checkpoint into one self-contained file."""
    if out is None and not dry_run:
        raise typer.BadParameter("give -o OUT.dq, or --dry-run to see what would be saved")
    path_from("IN", native)
    if out is not None and not dry_run:
        require_another(path_from("OUT.dq", out), native)
    config = config_of(bins=bins, prune=prune, protect=protect, embedding_bins=embedding_bins, scale=scale)
    settings: dict[str, Any] = {"method": method_of(method), "moments": moments, "exact": tuple(exact or ())}
    with working(f"compressing {native}"):
        state = read_native(native)
        if out is None or dry_run:
            info = rehearse(state, config=config, **settings)
        else:
            saving = begin_file(out, state, config=config, **settings)
            info = saving.seal(saving.draft(config), read_description(native)).write()
    tell(info, native, None if dry_run else out, as_json=as_json)


def decompress(
    packed: Annotated[Path, typer.Argument(metavar="IN.dq", help="A .dq file.")],
    out: OutOption,
    to: ToOption = None,
) -> None:
    """Write a .dq file back as torch.save or safetensors."""
    require_another(path_from("OUT", out), path_from("IN.dq", packed))
    write = resolve_exporter(to, out)
    with working(f"decompressing {packed}"):
        written(write, load_file(packed), out, FileSource(packed).info())
    write_line(f"{out}: written")


def rehearse(state: Any, **settings: Any) -> CheckpointInfo:
    """Saves into a temporary folder that is removed again: real sizes, nothing kept."""
    with tempfile.TemporaryDirectory(prefix="dynaquant-") as folder:
        path = Path(folder) / "rehearsal.dq"
        save_file(state, path, **settings)
        return FileSource(path).info()


def tell(info: CheckpointInfo, native: Path, out: Path | None, *, as_json: bool) -> None:
    """Says what a file costs, per part."""
    if as_json:
        emit(
            {
                "input": str(native),
                "output": None if out is None else str(out),
                "parts": info.parts,
                "raw_bytes": info.raw_bytes,
                "stored_bytes": info.stored_bytes,
                "ratio": info.ratio,
            }
        )
        return
    title = f"{native}: what would be saved" if out is None else f"{out}: what was saved"
    print_table(title, ("<part", "native", "compressed", "ratio"), part_rows(info.parts, info))
