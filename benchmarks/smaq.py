"""SmaQ against the formats of its table: final metric of short trainings, bytes, and memory.

    python benchmarks/smaq.py sts --steps 60 --batch 16 --weights FOLDER --out results.json
    python benchmarks/smaq.py memory
    python benchmarks/smaq.py gradients

A training is run once for each format with all that is held coded ("all"), and again without gradient maps
and optimizer state ("less"), in the published protocol: a layer sees the decoded map.  ``smaq saved`` is the
default of `smaq.apply`; ``smaq published`` codes zeros and second moments like everything else.  ``memory``
measures the resident peak of one training step, fp32 and packed, each in a process of its own; ``gradients``
how far the gradient of a ResNet is from the exact one where saved maps are packed.  Results that are in the
file are kept, so a run can be continued.  On images: ``dynaquant run systems/smaq_resnet`` and
``systems/smaq_inception``.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from smaq_tasks import Task, sts_task
from torch import Tensor, nn

from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.memory import smaq

FORMATS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"format": "bf16"},
    "fp16": {"format": "fp16"},
    "fp8_e5m2": {"format": "fp8_e5m2"},
    "fp8_e4m3": {"format": "fp8_e4m3"},
    "s2fp8": {"format": "s2fp8"},
    "smaq": {"format": "smaq"},
    "smaq published": {"format": {"name": "smaq", "keep_zeros": False}},
    "smaq saved": {"format": "smaq", "feature_maps": "saved"},
}
LESS = {"gradient_maps": False, "optimizer_state": False}


def trained(task: Task, name: str, what: str, seed: int, steps: int) -> dict[str, Any]:
    """One training and what came of it."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model)
    settings = {"feature_maps": "inline"} | FORMATS[name] | (LESS if what == "less" else {})
    settings["generator"] = torch.Generator().manual_seed(seed)
    handle = None if name == "fp32" else smaq.apply(model, optimizer, **settings)
    losses, begun = [], time.perf_counter()
    for step in range(steps):
        optimizer.zero_grad()
        loss = task.loss(model.train(), seed, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - begun) / steps
    with torch.no_grad():
        metric = task.metric(model.eval())
    report = {} if handle is None else handle.report()
    raw = sum(role.get("raw_bytes", 0) for role in report.values())
    stored = sum(role.get("stored_bytes", 0) for role in report.values())
    last = losses[-max(1, steps // 10) :]
    return {
        "format": name,
        "coded": what,
        "seed": seed,
        "steps": steps,
        "metric": metric,
        "loss": sum(last) / len(last),
        "benefit": raw / stored if stored else 1.0,
        "not_finite": sum(role.get("not_finite", 0) for role in report.values()),
        "seconds_a_step": seconds,
    }


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row with None for what JSON cannot hold."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def compare(task_name: str, options: argparse.Namespace) -> None:
    """Fills the file with a task's rows that it lacks, and prints all of them."""
    held = json.loads(options.out.read_text()) if options.out.exists() else []
    task = sts_task(options.batch, options.test, options.weights)
    for seed in options.seeds:
        for name in options.formats or FORMATS:
            for what in ("all",) if name == "fp32" else ("all", "less"):
                wanted = (task_name, name, what, seed, options.steps)
                if any(
                    tuple(row[key] for key in ("task", "format", "coded", "seed", "steps")) == wanted
                    for row in held
                ):
                    continue
                row = {"task": task_name} | plain(trained(task, name, what, seed, options.steps))
                held.append(row)
                print(json.dumps(row), flush=True)
                options.out.write_text(json.dumps(held, indent=1) + "\n")
    rows = [row for row in held if row["task"] == task_name]
    table = Table(*rows[0], title=task_name)
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=150).print(table)


def gradients(draws: int = 4) -> None:
    """Relative error of a ResNet's gradient with packed maps, of one draw and of the mean of several."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, images = ResNet(widths=(8, 16, 32), depths=1), torch.randn(64, 3, 32, 32)
    labels = torch.randint(10, (64,))
    only = {"gradient_maps": False, "gradients": False, "weights": False, "optimizer_state": False}

    def gradient() -> Tensor:
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        return torch.cat([item.grad.flatten() for item in model.parameters() if item.grad is not None])

    exact = gradient()
    table = Table("format of saved maps", "one draw", f"mean of {draws}", "smaller", title="gradients")
    limits = {
        f"smaq limit {limit}": {"format": {"name": "smaq", "limit": limit}} for limit in (3.0, 4.0, 6.0)
    }
    for name, settings in (FORMATS | limits).items():
        if name in ("fp32", "smaq saved"):
            continue
        found = []
        for draw in range(draws):
            generator = torch.Generator().manual_seed(draw)
            with smaq.apply(model, **(settings | only), generator=generator) as handle:
                found.append(gradient())
                smaller = handle.report()["saved"]["benefit"]
        errors = [float((one - exact).norm() / exact.norm()) for one in (found[0], sum(found) / draws)]
        table.add_row(name, *(f"{error:.1%}" for error in errors), f"{smaller:.2f}x")
    Console(width=100).print(table)


def memory_child(kind: str, batch: int) -> None:
    """Prints what one training step of a ResNet adds to the resident peak, in MB, and what is packed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, small = ResNet(widths=(32, 64, 128), depths=2), torch.randn(2, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    only = {"gradient_maps": False, "gradients": False, "weights": False, "optimizer_state": False}
    handle = smaq.apply(model, **only) if kind == "packed" else None
    model(small).square().mean().backward()  # compiles and allocates what is there once
    images = torch.randn(batch, 3, 32, 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss = model(images).square().mean()
    held = handle.report()["memory"] if handle else {}
    loss.backward()
    optimizer.step()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"kind": kind, "added_mb": (after - before) / 1024, **held}))


def memory(batch: int) -> None:
    """Both in processes of their own, because a peak is a process's."""
    for kind in ("fp32", "packed"):
        words = ["memory-child", "--kind", kind, "--batch", str(batch)]
        subprocess.run([sys.executable, __file__, *words], check=True)  # noqa: S603 - this very file


def main() -> None:
    """Reads the command line and runs."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("tasks", nargs="+", choices=["sts", "gradients", "memory", "memory-child"])
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--test", type=int, default=500, help="pairs of the dev split")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--kind", default="fp32")
    parser.add_argument("--out", type=Path, default=Path("smaq-results.json"))
    options = parser.parse_args()
    for task in options.tasks:
        if task == "memory":
            memory(options.batch)
        elif task == "gradients":
            gradients()
        elif task == "memory-child":
            memory_child(options.kind, options.batch)
        else:
            compare(task, options)


if __name__ == "__main__":
    main()
