"""What SAMO saves and costs, here.  Prints a JSON object; times are medians, taken in turns.

    python benchmarks/samo.py memory                         # bytes against the formula
    python benchmarks/samo.py time --model gpt               # a step, split, against a dense one (float32)
    python benchmarks/samo.py loss --model gpt --steps 600   # against dense pruned training, and unpruned
    python benchmarks/samo.py ranks                          # two gloo ranks against dense DDP
    python benchmarks/samo.py sparse                         # 90% zeros: dense products against CSR

Models: gpt (tiny Shakespeare), vgg and wide (CIFAR-10, the lossless subset), under ${DYNAQUANT_DATA}.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Self

from dynaquant_core.experiments.data.cifar import read as read_images
from dynaquant_core.experiments.data.corpus import read as read_text
from dynaquant_core.experiments.data.images import normalise
from dynaquant_core.experiments.data.text import encode
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo.engine import Engine
from dynaquant_core.memory.samo.gradients import Collector

SPARSITIES = (0.0, 0.25, 0.5, 0.8, 0.9)
BATCH = {"gpt": 16, "vgg": 32, "wide": 32}
CONTEXT = 64

Batch = tuple[Tensor, Tensor]


def vgg() -> nn.Module:
    """VGG-11's plan at half its width, with batch norms, for 32x32 images."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in (32, 0, 64, 0, 128, 128, 0, 256, 256, 0, 256, 256, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def build(name: str, seed: int = 0) -> nn.Module:
    """A fresh model."""
    torch.manual_seed(seed)
    if name == "gpt":
        return CharGPT(65, layers=4, width=256, heads=4, context=CONTEXT)
    return vgg() if name == "vgg" else ResNet(10, widths=(64, 128, 256), depths=1)


class Data:
    """Batches by number, and held-out ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "gpt":
            codes, _ = encode(read_text("text/tinyshakespeare.txt", 1 << 24))
            self.train, self.test = codes[:-66_000], codes[-66_000:]
        else:
            pixels = read_images("cifar10/cifar10_lossless_subset.npz")
            self.images, self.labels = normalise(pixels.train), torch.from_numpy(pixels.train_labels)
            self.held = normalise(pixels.test[:512]), torch.from_numpy(pixels.test_labels[:512])

    def batch(self, step: int) -> Batch:
        """The same at every call with the same number."""
        random = np.random.default_rng([7, step])
        if self.name == "gpt":
            return _rows(self.train, random.integers(0, len(self.train) - CONTEXT - 1, BATCH["gpt"]))
        chosen = torch.from_numpy(random.integers(0, len(self.images), BATCH[self.name]))
        return self.images[chosen], self.labels[chosen]

    def heldout(self) -> list[Batch]:
        """Fixed batches that are not trained on."""
        if self.name == "gpt":
            return [_rows(self.test, np.arange(64) * (CONTEXT + 1) + 4160 * at) for at in range(4)]
        return list(zip(self.held[0].split(128), self.held[1].split(128), strict=True))


def _rows(codes: Any, starts: Any) -> Batch:
    rows = torch.from_numpy(codes[starts[:, None] + np.arange(CONTEXT + 1)])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy in nats."""
    return cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def quality(model: nn.Module, data: Data) -> float:
    """Mean held-out loss."""
    model.eval()
    with torch.no_grad():
        losses = [float(loss_of(model, batch)) for batch in data.heldout()]
    model.train()
    return statistics.fmean(losses)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all measurements."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)


def memory(given: argparse.Namespace) -> list[dict[str, Any]]:
    """One step of each model at each sparsity; float16 as in the paper."""
    rows = []
    for name in given.models:
        data = Data(name)
        for sparsity in given.sparsities:
            model = build(name)
            optimizer = adamw(model)
            handle = samo.wrap(model, optimizer, sparsity=sparsity, embeddings=True, dtype=torch.float16)
            images, labels = data.batch(0)
            handle.scale(loss_of(model, (images[:2], labels[:2]))).backward()
            optimizer.step()
            report = samo.memory_report(handle)
            terms = {term.name: asdict(term) for term in report.terms}
            rows.append(
                {
                    "model": name,
                    "sparsity": sparsity,
                    "parameters": report.parameters,
                    "measured_over_formula": report.measured / report.formula,
                    "worst_term": max(abs(t.measured / t.formula - 1) for t in report.terms if t.formula),
                    "saved": report.saved,
                    "terms": terms,
                }
            )
    return rows


class Stopwatch:
    """Adds up the seconds that a method takes, while it is on."""

    def __init__(self, owner: type, method: str) -> None:
        self.seconds = 0.0
        self._owner, self._method, self._true = owner, method, getattr(owner, method)

    def __enter__(self) -> Self:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return self._true(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(self._owner, self._method, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._method, self._true)


def timed_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> dict[str, float]:
    """Seconds of one step by part: forward and backward, compress, optimizer, expand."""
    with Stopwatch(Collector, "collect") as compress, Stopwatch(Engine, "expand") as expand:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        between = time.perf_counter()
        optimizer.step()
        end = time.perf_counter()
    return {
        "compute": between - start - compress.seconds,
        "compress": compress.seconds,
        "optimizer": end - between - expand.seconds,
        "expand": expand.seconds,
        "step": end - start,
    }


def in_turns(
    sides: Sequence[Callable[[Batch], dict[str, float]]], data: Data, steps: int
) -> list[dict[str, float]]:
    """Medians of each side's parts; a step of one, a step of the other; the first fifth is not counted."""
    taken: list[list[dict[str, float]]] = [[] for _ in sides]
    for step in range(steps):
        for side, found in zip(sides, taken, strict=True):
            found.append(side(data.batch(step)))
    counted = [found[steps // 5 :] for found in taken]
    return [{part: statistics.median(one[part] for one in found) for part in found[0]} for found in counted]


def step_time(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Dense and SAMO in turns in one process, float32."""
    data = Data(given.model)
    rows = []
    for sparsity in given.sparsities:
        dense = build(given.model)
        model = copy.deepcopy(dense)
        its, optimizer = adamw(dense), adamw(model)
        samo.wrap(model, optimizer, sparsity=sparsity, embeddings=True, dtype=torch.float32)
        sides = (
            lambda batch, one=dense, opt=its: timed_step(one, opt, batch),
            lambda batch, one=model, opt=optimizer: timed_step(one, opt, batch),
        )
        plain, ours = in_turns(sides, data, given.steps)
        rows.append(
            {
                "model": given.model,
                "sparsity": sparsity,
                "dense": plain,
                "samo": ours,
                "step_ratio": ours["step"] / plain["step"],
                "optimizer_ratio": ours["optimizer"] / plain["optimizer"],
                "optimizer_and_expand_ratio": (ours["optimizer"] + ours["expand"]) / plain["optimizer"],
                "compress_and_expand_share": (ours["compress"] + ours["expand"]) / ours["step"],
            }
        )
    return rows


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, steps: range, after: Any = None
) -> None:
    """A plain loop; ``after`` is called before and after each optimizer step."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, data.batch(step)).backward()
        if after is not None:
            after()
        optimizer.step()
        if after is not None:
            after()


def final_loss(given: argparse.Namespace) -> list[dict[str, Any]]:
    """A quarter of the steps dense, then pruned: dense masked, and SAMO in float32 and bfloat16."""
    data = Data(given.model)
    start = build(given.model)
    optimizer = adamw(start)
    early, late = range(given.steps // 4), range(given.steps // 4, given.steps)
    train(start, optimizer, data, early)
    moments = copy.deepcopy(optimizer.state_dict())

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = copy.deepcopy(start)
        its = adamw(model)
        its.load_state_dict(copy.deepcopy(moments))
        return model, its

    model, its = fresh()
    train(model, its, data, late)
    unpruned = quality(model, data)
    rows = []
    for sparsity in given.sparsities:
        row = {"model": given.model, "sparsity": sparsity, "steps": given.steps, "unpruned": unpruned}
        for name, dtype in (("samo", torch.float32), ("samo_bfloat16", torch.bfloat16)):
            model, its = fresh()
            handle = samo.wrap(model, its, sparsity=sparsity, dtype=dtype)
            masks = handle.masks()
            train(model, its, data, late)
            row[name] = quality(model, data)
        model, its = fresh()
        train(model, its, data, late, _masking(model, masks))
        row["dense_pruned"] = quality(model, data)
        row["perplexity"] = {
            key: math.exp(row[key]) for key in ("unpruned", "samo", "samo_bfloat16", "dense_pruned")
        }
        rows.append(row)
    return rows


def _masking(model: nn.Module, masks: dict[str, Tensor]) -> Callable[[], None]:
    weights = dict(model.named_parameters())

    def mask() -> None:
        with torch.no_grad():
            for name, kept in masks.items():
                weights[name].masked_fill_(~kept, 0)
                gradient = weights[name].grad
                if gradient is not None:
                    gradient.masked_fill_(~kept, 0)

    mask()
    return mask


def ranks(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Two processes over loopback."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder, given), nprocs=2)
        found: list[dict[str, Any]] = json.loads((Path(folder) / "found.json").read_text())
    return found


def _rank(rank: int, folder: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    data = Data(given.model)
    rows = []
    for sparsity in given.sparsities:
        dense = build(given.model)
        model = copy.deepcopy(dense)
        parallel = DistributedDataParallel(dense)
        its, optimizer = adamw(parallel), adamw(model)
        handle = samo.wrap(model, optimizer, sparsity=sparsity, embeddings=True, dtype=torch.float32)
        sides = (
            lambda batch, one=parallel, opt=its: timed_step(one, opt, batch),
            lambda batch, one=model, opt=optimizer: timed_step(one, opt, batch),
        )
        plain, ours = in_turns(sides, data, given.steps)
        rows.append(
            {
                "model": given.model,
                "sparsity": sparsity,
                "dense_bytes": sum(one.numel() * 4 for one in model.parameters()),
                "samo_bytes": sum(bucket.buffer.numel() * 4 for bucket in handle.engine.buckets),
                "dense": plain,
                "samo": ours,
                "step_ratio": ours["step"] / plain["step"],
                "dense_reduce": _alone([one.numel() for one in model.parameters()], given.steps),
                "samo_reduce": _alone([b.buffer.numel() for b in handle.engine.buckets], given.steps),
            }
        )
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def _alone(sizes: Sequence[int], steps: int) -> float:
    """Median seconds of an all-reduce of as many float32 values, and nothing beside it."""
    buffer = torch.zeros(sum(sizes))
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        dist.all_reduce(buffer)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def sparse(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Forward of a square layer, batch 576, 90% zeros: the quickest dense product against CSR's."""
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
    rows = []
    for size in given.sizes:
        weight = torch.randn(size, size) * (torch.rand(size, size) < 0.1)
        x, packed = torch.randn(size, 576), weight.to_sparse_csr()
        taken: dict[str, list[float]] = {"dense": [], "csr": []}
        for _ in range(given.steps):
            for name, one in (("dense", weight), ("csr", packed)):
                start = time.perf_counter()
                one @ x
                taken[name].append(time.perf_counter() - start)
        dense, csr = (min(taken[name]) for name in ("dense", "csr"))
        rows.append({"size": size, "dense_s": dense, "csr_s": csr, "csr_over_dense": csr / dense})
    return rows


COMMANDS = {"memory": memory, "time": step_time, "loss": final_loss, "ranks": ranks, "sparse": sparse}


def main() -> None:
    """Reads the command line, measures, prints JSON."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--model", default="gpt", choices=list(BATCH))
    parser.add_argument("--models", nargs="+", default=list(BATCH), choices=list(BATCH), help="of memory")
    parser.add_argument("--sparsities", nargs="+", type=float, default=list(SPARSITIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = COMMANDS[given.command](given)
    about = {"torch": torch.__version__, "threads": given.threads}
    print(json.dumps({"command": given.command, "environment": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
