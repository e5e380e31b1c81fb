"""What a user would pick instead, on the same recorded checkpoints: real packages, real bytes, read back.

    python benchmarks/peers runs/.recordings/NAME                   # a recording that is there
    python benchmarks/peers replay/quick --ours                     # a config: recorded first, ours beside
    python benchmarks/peers CONFIG seeds='[0]' --peers nncodec,zipnn --json out.json

In an environment of its own (README.md beside this file).  A peer with a knob is asked for every threshold of
the config; the others are run once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compare import Comparison
from ours import of_ours
from rich.console import Console
from show import summary, tables
from sources import Recorded, recorded
from table import PEERS, Peer, chosen

from dynaquant_core.config import require
from dynaquant_core.errors import DynaQuantError, ExperimentError
from dynaquant_core.experiments import Progress, run_experiment
from dynaquant_core.experiments.environment import environment
from dynaquant_core.experiments.job import write_json

Row = dict[str, Any]

said = Console(stderr=True, highlight=False)


def command() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("peers", description=__doc__, formatter_class=raw)
    parser.add_argument("source", help="folder of a recording, YAML file, or name of a shipped config")
    parser.add_argument("overrides", nargs="*", help="key=value, of a config")
    parser.add_argument(
        "--peers", help=f"with commas between; default: the installed ones of {', '.join(PEERS)}"
    )
    parser.add_argument("--threshold", help="with commas between; default: those of the source")
    parser.add_argument("--er", type=float, default=0.2, help="error allowed, of the movement; of nncodec-er")
    parser.add_argument(
        "--ours", action="store_true", help="replays the config's own grid, and puts it beside"
    )
    parser.add_argument(
        "--results", type=Path, nargs="*", default=[], help="results.json of replays to put beside"
    )
    parser.add_argument("--files", type=Path, help="keeps the peers' files below this folder, which is new")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser


def rows(arguments: argparse.Namespace, files: Path) -> Iterator[Row]:
    """Every peer at every threshold on every recording, and ours beside."""
    peers = chosen(arguments.peers)
    given = thresholds(arguments.threshold)
    require(arguments.er > 0, f"--er: expected a share above 0, got {arguments.er}.")
    sources = recorded(arguments.source, arguments.overrides, tell)
    results = list(arguments.results)
    if arguments.ours:
        results.append(replayed(arguments).path)
    for number, source in enumerate(sources):
        comparison = Comparison(source.experiment, source.recording)
        about = labels(source, comparison)
        for path in results:
            for found in of_ours(path, source.experiment):
                yield about | found | {"guard": "threshold", "summary": summary(found["checkpoints"])}
        for peer in peers:
            for threshold in asked(peer, given or source.thresholds):
                place = files / f"{number}-{peer.name}-{threshold}"
                yield about | row(comparison, peer, place, threshold, arguments.er)


def row(comparison: Comparison, peer: Peer, folder: Path, threshold: float | None, er: float) -> Row:
    """One peer at one threshold; what it cannot keep is its row's error, and the others go on."""
    named: Row = {"peer": peer.name, "guard": peer.guard, "threshold": threshold, "version": peer.version}
    named |= {"er_limit": er} if peer.guard == "movement" else {}
    allowed = 1.0 if threshold is None else threshold
    try:
        entries = []
        for entry in comparison.checkpoints(peer, folder, threshold=allowed, er=er):
            entries.append(entry)
            said.print(f"{peer.name}, step {entry['step']} {entry['config']}", soft_wrap=True)
    except ExperimentError as error:
        return named | {"error": str(error)}
    return named | {"checkpoints": entries, "summary": summary(entries)}


def asked(peer: Peer, given: Sequence[float]) -> Sequence[float | None]:
    """Thresholds at which a peer differs; one of movement has the lowest, for its first file."""
    return {"none": [None], "threshold": given, "movement": given[:1]}[peer.guard]


def thresholds(text: str | None) -> tuple[float, ...]:
    """Of the command line; none where nothing was said."""
    try:
        found = sorted(float(part) for part in (text or "").split(",") if part)
    except ValueError:
        found = [0.0]
    wrong = [value for value in found if not 0 < value < 1]
    require(not wrong, f"--threshold: expected shares between 0 and 1, such as 0.01,0.05, got {text!r}.")
    return tuple(found)


def labels(source: Recorded, comparison: Comparison) -> Row:
    """What a row is about."""
    run, facts = source.experiment, environment()
    return {
        "model": run.model.name,
        "parameters": comparison.judge.parameters,
        "data": run.data.source,
        "seed": run.seed,
        "steps": run.steps,
        "interval_steps": run.checkpoint_every,
        "moments": run.moments,
        "device": facts["device"],
        "recording": str(source.recording.folder),
    }


def replayed(arguments: argparse.Namespace) -> Any:
    """The project's own replay of the same config; runs that are finished are not repeated."""
    require(
        not Path(arguments.source).is_dir(),
        "--ours needs the config: a recording does not say what to run on it.",
    )
    return run_experiment(arguments.source, [*arguments.overrides, "kind=replay"], tell)


def tell(progress: Progress) -> None:
    """What a training or a replay says, on standard error."""
    if progress.message:
        said.print(f"{progress.run}: {progress.step}/{progress.steps} {progress.message}", soft_wrap=True)


def main(words: Sequence[str] | None = None) -> int:
    """Reads the command line, measures, prints tables and writes the JSON; returns the exit status."""
    arguments = command().parse_args(words)
    try:
        if arguments.files is not None:
            require(
                not arguments.files.exists(),
                f"--files: {arguments.files} is there already; name a new folder.",
            )
        with tempfile.TemporaryDirectory(prefix="dynaquant-peers-") as scratch:
            found = list(rows(arguments, arguments.files or Path(scratch)))
        if arguments.json is not None:
            write_json(arguments.json, {"format": 1, "environment": environment(), "rows": found})
    except DynaQuantError as error:
        said.print(f"peers: {error}", soft_wrap=True, markup=False)
        return 1
    tables(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
