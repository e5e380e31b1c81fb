"""What SAMO saves and costs, here.  Prints a JSON object; times are medians, taken in turns.

    python benchmarks/samo.py memory                         # bytes against the formula
    python benchmarks/samo.py time --model gpt               # a step, split, against a dense one (float32)
    python benchmarks/samo.py ranks                          # two gloo ranks against dense DDP
    python benchmarks/samo.py sparse                         # 90% zeros: dense products against CSR

What a training makes of it: ``dynaquant run systems/samo_gpt``, ``samo_vgg`` and ``samo_wide``.

Models: gpt (tiny Shakespeare), vgg, wide and mlp (CIFAR-10, the lossless subset), under ${DYNAQUANT_DATA}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from samo_nets import BATCH, Data, adamw, build, loss_of
from samo_timing import against_dense
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.memory import samo

SPARSITIES = (0.0, 0.25, 0.5, 0.8, 0.9)


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


def step_time(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Dense and SAMO in turns in one process, float32."""
    data = Data(given.model)
    rows = []
    for sparsity in given.sparsities:
        _, both = against_dense(given.model, sparsity, data, given.steps)
        plain, ours = both["dense"], both["samo"]
        rows.append(
            {
                "model": given.model,
                "sparsity": sparsity,
                **both,
                "optimizer_ratio": ours["optimizer"] / plain["optimizer"],
                "optimizer_and_expand_ratio": (ours["optimizer"] + ours["expand"]) / plain["optimizer"],
                "compress_and_expand_share": (ours["compress"] + ours["expand"]) / ours["step"],
            }
        )
    return rows


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
        handle, both = against_dense(given.model, sparsity, data, given.steps, DistributedDataParallel)
        dense = sum(one.numel() for one in handle.engine.model.parameters())
        ours = sum(bucket.buffer.numel() for bucket in handle.engine.buckets)
        rows.append(
            {
                "model": given.model,
                "sparsity": sparsity,
                "dense_bytes": dense * 4,
                "samo_bytes": ours * 4,
                **both,
                "dense_reduce": _alone(dense, given.steps),
                "samo_reduce": _alone(ours, given.steps),
            }
        )
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def _alone(count: int, steps: int) -> float:
    """Median seconds of an all-reduce of as many float32 values, and nothing beside it."""
    buffer = torch.zeros(count)
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


COMMANDS = {"memory": memory, "time": step_time, "ranks": ranks, "sparse": sparse}


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
