"""One fixed point, without model, gradients and search, on series of checkpoints: ratio and worst error.

A series is other people's (`benchmarks/series.py`), files of your own in their order, or the weights of a
run that is trained here, one checkpoint an interval; buffers and averages are counted.  The error is that of
the worst tensor of more than 4096 elements, root of the squared error over that of the squares.

python benchmarks/fixed_point.py
python benchmarks/fixed_point.py --files one.pt two.pt three.safetensors
python benchmarks/fixed_point.py --run ablation/bins_mobilenet steps=400 --checkpoints 4
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from series import State, all_series, native

import dynaquant_core as dq
from dynaquant_core.cli.output import emit, print_table, share
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.trainer import Trainer

POINT = dq.Config(bins=16, prune=0.1, protect=0.005)
#: Smaller tensors are not looked at for the worst error.
LARGE = 4096


@dataclass(frozen=True)
class Row:
    """One series; ``vectors`` is the share of its parameters that have one dimension."""

    series: str
    checkpoints: int
    parameters: int
    vectors: float
    key: float
    whole: float
    worst: float


def trained(name: str, overrides: list[str], checkpoints: int) -> list[State]:
    """The weights of a run of an experiment, at so many places evenly spread, its end included."""
    experiment = load_experiment(name, overrides)
    trainer, steps = Trainer(experiment), experiment.steps
    due = {round(steps * (number + 1) / checkpoints) for number in range(checkpoints)}
    found = []
    for step in range(1, steps + 1):
        trainer.advance()
        if step in due:
            state = trainer.model.state_dict()
            found.append({key: value.clone() for key, value in state.items()})
    return found


def weights_of(state: Mapping[str, Any]) -> State:
    """The floating tensors of a file: those of the dictionary in it that says so, if one does."""
    inner = next((state[key] for key in ("state_dict", "model", "model_state_dict") if key in state), state)
    return {name: value for name, value in inner.items() if torch.is_tensor(value)}


def read(path: Path) -> State:
    """A torch file or a safetensors file."""
    return weights_of(load_file(path) if path.suffix == ".safetensors" else native(path))


def row_of(name: str, states: list[State]) -> Row:
    """Saves a series and reads every checkpoint of it back."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder, dq.CheckpointStore(folder) as store:
        infos = [store.save(step, state, config=POINT) for step, state in enumerate(states)]
        for step, state in enumerate(states):
            again = store.load(step)
            large = [key for key, value in state.items() if value.numel() > LARGE]
            worst = max([worst, *(error(state[key], again[key]) for key in large)])
    count = sum(value.numel() for value in states[0].values() if value.is_floating_point())
    vectors = sum(value.numel() for value in states[0].values() if value.dim() == 1)
    whole = sum(info.raw_bytes for info in infos) / sum(info.stored_bytes for info in infos)
    return Row(name, len(states), count, vectors / count, infos[0].ratio, whole, worst)


def error(true: torch.Tensor, decoded: torch.Tensor) -> float:
    """Relative error of a tensor."""
    off, own = (decoded.double() - true.double()).norm(), true.double().norm()
    return float(off / own) if own else 0.0


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """What was asked for, a row each."""
    if given.files:
        yield row_of(given.files[0].name, [read(path) for path in given.files])
    elif given.run:
        yield row_of(given.run[0], trained(given.run[0], given.run[1:], given.checkpoints))
    else:
        for name, states in all_series(Path(os.environ.get("DYNAQUANT_DATA", "../shared/data"))):
            yield row_of(name, [weights_of(state) for state in states])


def cells_of(row: Row) -> list[str]:
    """A row of the table."""
    sizes = [f"{row.parameters:,}", share(row.vectors), f"{row.key:.1f}", f"{row.whole:.1f}"]
    return [row.series, str(row.checkpoints), *sizes, share(row.worst)]


def main() -> None:
    """Measures and prints."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--files", nargs="+", type=Path, help="of one series, in their order")
    parser.add_argument("--run", nargs="+", metavar=("EXPERIMENT", "KEY=VALUE"), help="as of dynaquant run")
    parser.add_argument("--checkpoints", type=int, default=4, help="of --run")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = list(rows(given))
    if given.json:
        emit([asdict(row) for row in found])
        return
    columns = ("<series", "checkpoints", "parameters", "vectors", "key", "series", "worst error")
    cells = [cells_of(row) for row in found]
    print_table(f"{POINT!r}: raw over stored bytes", columns, cells)


if __name__ == "__main__":
    main()
