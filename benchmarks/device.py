"""What DynaQuant costs and saves on a CUDA device: milliseconds of a step and bytes of the device's memory.

    python benchmarks/device.py                    # every part, a JSON object a row
    python benchmarks/device.py smaq samo          # some of them

smaq: a step with packed feature maps.  samo: a pruned step.  two_bit: codes of gradients.  checkpoint: what a
`Checkpointer` holds the training up.  Models and batches are random: nothing here is learnt.  Stages on
tensors alone, and whole saves: ``dynaquant bench --device cuda``.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dynaquant_core as dq
from dynaquant_core.comm import two_bit
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.memory import samo, smaq

DEVICE = "cuda"
VOCABULARY, CONTEXT = 256, 256
ONLY_MAPS = {"gradient_maps": False, "gradients": False, "weights": False, "optimizer_state": False}

Row = dict[str, Any]


def gpt(width: int = 768, layers: int = 12) -> nn.Module:
    """85M parameters as it stands."""
    torch.manual_seed(0)
    net = CharGPT(VOCABULARY, layers=layers, width=width, heads=width // 64, context=CONTEXT)
    return net.to(DEVICE)


def resnet() -> nn.Module:
    """2.8M parameters."""
    torch.manual_seed(0)
    return ResNet(10, widths=(64, 128, 256), depths=2).to(DEVICE)


def tokens(rows: int) -> tuple[Tensor, Tensor]:
    """Random text, and the same moved by one."""
    found = torch.randint(VOCABULARY, (rows, CONTEXT + 1), device=DEVICE)
    return found[:, :-1], found[:, 1:]


def images(rows: int) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    return torch.randn(rows, 3, 32, 32, device=DEVICE), torch.randint(10, (rows,), device=DEVICE)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy."""
    return cross_entropy(model(batch[0]).flatten(0, -2).float(), batch[1].flatten())


def milliseconds(call: Callable[[], object], runs: int = 15) -> float:
    """Median of the runs after three that are not counted, each until the device has done its work."""
    taken = []
    for _ in range(runs + 3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken[3:])


def room(call: Callable[[], object]) -> float:
    """MB of the device's memory that a call needs at most beyond what was taken before."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


# -- smaq ------------------------------------------------------------------------------------------


def smaq_rows() -> Iterator[Row]:
    """A forward and backward pass, exact and with packed maps."""
    cases = {
        "resnet 2.8M, 512 images": (resnet, images(512), False),
        "gpt 85M, 16 x 256": (gpt, tokens(16), False),
        "gpt 85M, 16 x 256, bf16": (gpt, tokens(16), True),
    }
    for name, (make, batch, half) in cases.items():
        model = make()

        def step(model: nn.Module = model, batch: Any = batch, half: bool = half) -> None:
            model.zero_grad()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
                loss = loss_of(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]

        step()
        exact = {"ms": milliseconds(step), "mb": room(step)}
        with smaq.apply(model, **ONLY_MAPS) as handle:
            packed = {"ms": milliseconds(step, 3), "mb": room(step)}
            benefit = handle.report()["saved"]["benefit"]
        yield {"what": name, "exact": exact, "packed": packed, "maps_smaller": benefit}
    values = torch.randn(1 << 26, device=DEVICE)
    draw = torch.Generator().manual_seed(0)
    coded = smaq.make_format("smaq").encode(values, draw)
    encode = milliseconds(lambda: smaq.make_format("smaq").encode(values, draw), 5)
    decode = milliseconds(coded.decode, 5)
    copy = milliseconds(values.clone)
    yield {"what": "67M values", "encode_ms": encode, "decode_ms": decode, "device_copy_ms": copy}
    yield from coded_rows()


def coded_rows() -> Iterator[Row]:
    """Whole steps of AdamW: exact, and with maps, gradients, weights and the optimizer's state coded."""
    taken = {}
    for kind in ("exact", "coded"):
        model, batch = gpt(), tokens(16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(model: nn.Module = model, optimizer: Any = optimizer, batch: Any = batch) -> None:
            optimizer.zero_grad()
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        step()
        handle = smaq.apply(model, optimizer) if kind == "coded" else None
        taken[kind] = milliseconds(step, 5)
        if handle is not None:
            handle.remove()
    yield {"what": "gpt 85M, 16 x 256, a step of AdamW with everything coded", **taken}


# -- samo ------------------------------------------------------------------------------------------


def samo_rows() -> Iterator[Row]:
    """A step of AdamW: dense float32 under autocast, and pruned in float16; few tokens and many."""
    for sparsity in (None, 0.8, 0.9):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        handle = None
        if sparsity is not None:
            handle = samo.wrap(
                model, optimizer, sparsity=sparsity, embeddings=True, dtype=torch.float16, loss_scale=1024.0
            )

        def step(
            batch: Any, model: nn.Module = model, optimizer: Any = optimizer, handle: Any = handle
        ) -> None:
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.float16, enabled=handle is None):
                loss = loss_of(model, batch)
            (loss if handle is None else handle.scale(loss)).backward()
            optimizer.step()

        step(tokens(8))
        held = (torch.cuda.memory_allocated() - before) / 1e6
        row = {"what": "dense" if sparsity is None else f"samo, {sparsity:.0%} pruned", "held_mb": held}
        row["optimizer_ms"] = milliseconds(optimizer.step)
        for rows in (32, 128):
            row[f"step_ms, {rows} x {CONTEXT}"] = milliseconds(partial(step, tokens(rows)), 9)
        yield row
        del model, optimizer, handle, step


# -- two bits --------------------------------------------------------------------------------------


def two_bit_rows() -> Iterator[Row]:
    """25 MB, which is DDP's own bucket, and 1 GB of gradients."""
    for count in (25 * (1 << 20) // 4, 250_000_000):
        gradient, residual = 0.3 * torch.randn(count, device=DEVICE), torch.zeros(count, device=DEVICE)
        packed = two_bit.encode(residual, gradient, 0.5, 0.5)
        rows = packed.expand(8, -1).contiguous()
        taken = {
            "encode_ms": milliseconds(lambda g=gradient, r=residual: two_bit.encode(r, g, 0.5, 0.5)),
            "decode_8_ms": milliseconds(lambda a=rows, n=count: two_bit.decode_sum(a, n, 0.5, 0.5, 8.0)),
            "device_copy_ms": milliseconds(gradient.clone),
        }
        extra = room(lambda g=gradient, r=residual: two_bit.encode(r, g, 0.5, 0.5))
        yield {"what": f"{4e-6 * count:.0f} MB of gradients", **taken, "encode_extra_mb": extra}


# -- checkpoints -----------------------------------------------------------------------------------


def checkpoint_rows() -> Iterator[Row]:
    """A GPT of 85M under AdamW, bf16, a checkpoint every 150 steps, the first of them not counted."""
    every, batches = 150, [tokens(64) for _ in range(4)]
    for method in (None, "lattice", "dynaquant"):
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def evaluate(net: nn.Module) -> list[float]:
            with torch.autocast(DEVICE, torch.bfloat16):
                return [float(loss_of(net, batch)) for batch in batches[:2]]

        def step(count: int, checkpoints: Any, model: nn.Module = model, optimizer: Any = optimizer) -> float:
            torch.cuda.synchronize()
            started = time.perf_counter()
            for index in range(count):
                optimizer.zero_grad()
                with torch.autocast(DEVICE, torch.bfloat16):
                    loss = loss_of(model, batches[index % 4])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if checkpoints is not None:
                    checkpoints.step()
            torch.cuda.synchronize()
            return time.perf_counter() - started

        if method is None:
            step(20, None)
            plain = step(2 * every, None) / (2 * every)
            yield {"what": "no checkpoints", "step_ms": 1e3 * plain}
            continue
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = dq.Checkpointer(
                folder,
                model,
                optimizer,
                every=every,
                evaluate=evaluate,
                threshold=0.05,
                method=method,
                keep_last=9,
            )
            step(every + 5, checkpoints)
            checkpoints.wait()
            taken = step(2 * every, checkpoints)
            checkpoints.wait()
            checkpoints.close()
            store = dq.CheckpointStore(folder)
            infos = [store.info(step) for step in store.steps()]
        yield {
            "what": f"{method}, every {every} steps",
            "overhead": taken / (2 * every) / plain - 1,
            "held_s_a_checkpoint": (taken - 2 * every * plain) / 2,
            "stages_s": [dict(info.seconds) for info in infos],
            "ratios": [info.ratio for info in infos],
            "evaluations": [info.evaluations for info in infos],
        }


PARTS = {"smaq": smaq_rows, "samo": samo_rows, "two_bit": two_bit_rows, "checkpoint": checkpoint_rows}


def main() -> None:
    """Reads the command line, measures, prints a row as it is known."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    for part in parser.parse_args().parts:
        print(json.dumps({"part": part, "device": torch.cuda.get_device_name(), "torch": torch.__version__}))
        for row in PARTS[part]():
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
