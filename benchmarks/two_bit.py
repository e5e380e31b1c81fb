"""Two-bit gradients against dense ones: packing speed, bytes, and seconds a step.

Every subcommand prints one JSON object.  Ranks are processes on this machine that talk over loopback (gloo).

    python benchmarks/two_bit.py pack
    python benchmarks/two_bit.py bytes --ranks 2 4
    python benchmarks/two_bit.py seconds --megabytes 50 93 139

What a training makes of them: ``dynaquant run systems/two_bit_mlp`` and ``systems/two_bit_lstm``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm import two_bit
from dynaquant_core.comm.two_bit.exchange import all_gather
from dynaquant_core.threads import cores

#: DDP's own size of a bucket, in elements of float32.
BUCKET = 25 * (1 << 20) // 4


# -- ranks -----------------------------------------------------------------------------------------


def job(ranks: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work(*arguments)`` gives on rank 0 of a gloo job of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (ranks, folder, work, arguments), nprocs=ranks)
        return json.loads((Path(folder) / "out.json").read_text())


def _rank(rank: int, ranks: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["DYNAQUANT_THREADS"] = "1"
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = work(*arguments)
    if rank == 0:
        (Path(folder) / "out.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def seconds(work: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of some runs, the first left out."""
    work()
    found = []
    for _ in range(repeats):
        start = clock()
        work()
        found.append(clock() - start)
    return min(found)


# -- pack ------------------------------------------------------------------------------------------


def pack(options: argparse.Namespace) -> dict[str, Any]:
    """GB of float32 gradients a second on one thread, beside what the memory gives.

    Seconds of the thread's own processor time, so that other programs count only for the memory they use.
    """
    timed = partial(seconds, repeats=options.repeats, clock=time.thread_time)
    torch.set_num_threads(1)
    os.environ["DYNAQUANT_THREADS"] = "1"
    gradient = 0.3 * torch.randn(BUCKET)
    residual, copy = torch.zeros(BUCKET), torch.empty(BUCKET)
    gigabytes = BUCKET * 4 / 1e9
    packed = two_bit.encode(residual, gradient, 0.5, 0.5)
    gathered = packed.expand(2, -1).contiguous()
    times = {
        "encode": timed(lambda: two_bit.encode(residual, gradient, 0.5, 0.5)),
        "decode, two senders": timed(lambda: two_bit.decode_sum(gathered, BUCKET, 0.5, 0.5)),
        "memory copy": timed(lambda: copy.copy_(gradient)),
    }
    # An encoder reads gradient and residual and writes the residual; a copy reads and writes.
    floor = 1.5 * times["memory copy"]
    return {
        "gigabytes": gigabytes,
        "gigabytes_a_second": {name: gigabytes / value for name, value in times.items()},
        "encode_against_its_memory_traffic": floor / times["encode"],
    }


# -- bytes -----------------------------------------------------------------------------------------


def count_bytes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Bytes of one step by world size: handed to the collective, received, and seen on loopback."""
    return [job(ranks, _bytes_of_a_step, options.megabytes) for ranks in options.ranks]


def _bytes_of_a_step(megabytes: float) -> dict[str, Any]:
    ranks = distributed.get_world_size()
    count = int(megabytes * 1e6 / 4)
    model = DistributedDataParallel(nn.Linear(count // 1000, 1000, bias=False))
    state = two_bit.register(model, threshold=1e-3, warmup=3)
    inputs = torch.randn(1, count // 1000)
    dense = sum(parameter.numel() * 4 for parameter in model.parameters())
    seen = {"dense": _over_loopback(lambda: model(inputs).sum().backward(), state, 2)}
    seen["2bit"] = _over_loopback(lambda: model(inputs).sum().backward(), state, 2)
    packed = state.bytes_handed_in // 2
    return {
        "ranks": ranks,
        "gradients": dense,
        "handed_in": {"dense": dense, "2bit": packed},
        "ratio": dense / packed,
        "received": {"dense, ring": 2 * (ranks - 1) / ranks * dense, "2bit": (ranks - 1) * packed},
        "loopback_a_rank_and_step": seen,
    }


def _over_loopback(step: Callable[[], Any], state: two_bit.TwoBitState, steps: int) -> float:
    """Bytes that cross this machine's loopback in a step, over ranks; other programs' traffic included."""
    if state.step == 0:
        step()  # buckets are built anew after the first
    distributed.barrier()
    before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    for _ in range(steps):
        step()
    distributed.barrier()
    after = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    return (after - before) / steps / distributed.get_world_size()


# -- seconds ---------------------------------------------------------------------------------------


def time_steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds to exchange so many MB of gradients, and the bandwidth below which two bits are faster."""
    return [job(options.ranks, _times, size, options.repeats) for size in options.megabytes]


def _times(megabytes: float, repeats: int) -> dict[str, Any]:
    ranks, count = distributed.get_world_size(), int(megabytes * 1e6 / 4)
    gradient, residual = 0.3 * torch.randn(count), torch.zeros(count)
    parts = [slice(at, min(at + BUCKET, count)) for at in range(0, count, BUCKET)]
    spent = dict.fromkeys(("encode", "gather", "decode"), 0.0)

    def timed(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        found = work(*arguments)
        spent[name] += time.perf_counter() - start
        return found

    def compressed() -> dict[str, float]:
        spent.update(dict.fromkeys(spent, 0.0))
        start = time.perf_counter()
        for part in parts:
            packed = timed("encode", two_bit.encode, residual[part], gradient[part], 0.5, 0.5)
            rows = timed("gather", _gathered, packed)
            timed("decode", two_bit.decode_sum, rows, part.stop - part.start, 0.5, 0.5, ranks)
        return {"2bit": time.perf_counter() - start, **spent}

    def dense() -> None:
        for part in parts:
            distributed.all_reduce(gradient[part])
            gradient[part] /= ranks

    found = {"dense": seconds(dense, repeats)}
    gradient.copy_(0.3 * torch.randn(count))
    compressed()  # compiles
    found |= min((compressed() for _ in range(repeats)), key=lambda times: times["2bit"])
    codec = found["encode"] + found["decode"]
    saved = 2 * (ranks - 1) / ranks * count * 4 - (ranks - 1) * two_bit.packed_bytes(count)
    return {
        "megabytes": megabytes,
        "ranks": ranks,
        "seconds": found,
        "break_even_gigabits_a_second": 8e-9 * saved / codec,
    }


def _gathered(packed: Tensor) -> Tensor:
    return all_gather(packed, distributed.group.WORLD, lambda rows: rows).wait()


def main() -> None:
    """Reads the words and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, work in (("pack", pack), ("bytes", count_bytes), ("seconds", time_steps)):
        command = commands.add_parser(name, help=(work.__doc__ or "").splitlines()[0])
        command.set_defaults(work=work)
        command.add_argument("--repeats", type=int, default=5)
        if name == "bytes":
            command.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
            command.add_argument("--megabytes", type=float, default=20)
        elif name == "seconds":
            command.add_argument("--ranks", type=int, default=2)
            command.add_argument("--megabytes", type=float, nargs="+", default=[50, 93, 139, 230, 462])
    options = parser.parse_args()
    print(json.dumps({"load": os.getloadavg(), "cpus": cores(), "found": options.work(options)}, indent=1))


if __name__ == "__main__":
    main()
