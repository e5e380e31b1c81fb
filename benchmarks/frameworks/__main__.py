"""Native checkpoints against DynaQuant's in one training framework: bytes, final quality, time held.

    python benchmarks/frameworks transformers final   # killed and resumed once, three seeds
    python benchmarks/frameworks transformers disk    # bytes of the whole output folder
    python benchmarks/frameworks transformers held    # seconds of the training thread a save

The frameworks: transformers, lightning, accelerate, and composer in its own environment.  Every training is a
character GPT on tiny Shakespeare, which lies where the README says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from held import held
from job import Job
from lives import live
from rich.console import Console
from rich.table import Table

FRAMEWORKS = ("transformers", "lightning", "composer", "accelerate")

Row = dict[str, Any]


def final(framework: str, base: Job, seeds: int) -> Iterator[Row]:
    """Held-out loss at the end of trainings that were killed half-way and resumed in a fresh process."""
    killed = base.steps // 2 + base.every // 2
    losses: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(seeds):
        row: Row = {"seed": seed}
        for ours, name in ((False, "native"), (True, "ours")):
            folder = f"{base.folder}/{name}-{seed}"
            job = replace(base, folder=folder, ours=ours, seed=seed)
            first = live(framework, replace(job, kill_at=killed))
            second = live(framework, replace(job, resume=True))
            losses[ours].append(second["loss"])
            row |= {f"{name} resumed at": second["from"], f"{name} loss": round(second["loss"], 4)}
            row |= {f"{name} bytes": second["disk"], f"{name} peak": max(first["peak"], second["peak"])}
            row |= {f"{name} saves": [round(each, 2) for each in second["held"]]}
            row["complaints"] = row.get("complaints", 0) + len(first["complaints"] + second["complaints"])
        row["difference"] = f"{losses[True][-1] / losses[False][-1] - 1:+.2%}"
        yield row
    native, ours = (statistics.mean(losses[which]) for which in (False, True))
    spread = (statistics.stdev(losses[which]) if seeds > 1 else 0.0 for which in (False, True))
    yield {
        "seed": "mean",
        "native loss": f"{native:.4f} +- {next(spread):.4f}",
        "ours loss": f"{ours:.4f} +- {next(spread):.4f}",
        "difference": f"{ours / native - 1:+.2%}",
    }


def disk(framework: str, base: Job) -> Iterator[Row]:
    """Bytes of whole output folders of undisturbed trainings, files with several names once."""
    for keep, chain in ((base.keep, base.keep - 1), (0, None)):
        job = replace(base, keep=keep, max_chain=chain)
        name = f"{keep}-{chain}"
        ours = live(framework, replace(job, ours=True, folder=f"{base.folder}/ours-{name}"))
        native = live(framework, replace(job, ours=False, folder=f"{base.folder}/native-{name}"))
        yield {
            "kept": keep or len(ours["checkpoints"]),
            "max_chain": "default" if chain is None else chain,
            "native bytes": native["disk"],
            "ours bytes": ours["disk"],
            "ratio": round(native["disk"] / ours["disk"], 1),
            "native peak": native["peak"],
            "ours peak": ours["peak"],
            "met": f"{sum(bool(one['met']) for one in ours['checkpoints'])} of {len(ours['checkpoints'])}",
            "kinds": " ".join(one["kind"] for one in ours["checkpoints"]),
        }


def rows(arguments: argparse.Namespace, folder: str) -> Iterator[Row]:
    """What was asked for."""
    given = {name: getattr(arguments, name) for name in ("steps", "every", "keep", "threads", "method")}
    job = Job(folder, ours=True, **given)
    torch.set_num_threads(job.threads)
    if arguments.what == "final":
        yield from final(arguments.framework, job, arguments.seeds)
    elif arguments.what == "disk":
        yield from disk(arguments.framework, job)
    else:
        for size in arguments.sizes.split(","):
            sized = replace(job, folder=f"{folder}/{size}", size=size)
            yield held(arguments.framework, sized, arguments.rounds)


def command() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("frameworks", description=__doc__, formatter_class=raw)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("what", choices=("final", "disk", "held"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=240, help="of final and disk")
    parser.add_argument("--every", type=int, default=40, help="steps between saves, of final and disk")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that final keeps; 0: all")
    parser.add_argument("--sizes", default="1M,10M", help="of held")
    parser.add_argument("--rounds", type=int, default=3, help="of held, one more to warm up")
    parser.add_argument("--method", help="of DynaQuant; default: the project's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    """Reads the command line, measures, prints a table or a line of JSON a row."""
    arguments = command().parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="dynaquant-frameworks-") as folder:
        for row in rows(arguments, folder):
            found.append(row)
            if arguments.json:
                print(json.dumps(row), flush=True)
    if arguments.json:
        return
    table = Table("", *(str(number) for number in range(1, len(found) + 1)))
    table.title = f"{arguments.framework} {arguments.what}"
    for name in found[0]:
        table.add_row(name, *(str(row.get(name, "")) for row in found))
    Console().print(table)


if __name__ == "__main__":
    main()
