"""One rank of a job that exchanges two-bit gradients; a program of its own, started by `tests.gloo.play`.

``python -m tests.comm.ranks STORE RANK RANKS OUT ACT...`` plays the acts and writes what it saw to OUT.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core import comm
from dynaquant_core.comm import two_bit
from dynaquant_core.errors import DynaQuantError
from tests.comm.products import BELOW, BY_NAME, SIZES, Products, gradients, told, wrapped
from tests.gloo import leave

STEPS = 6


def held(state):
    return {name: state.residual(name).flatten().tolist() for name in SIZES}


def refusal(call):
    """The error that a call ends in, by name and text."""
    try:
        call()
    except DynaQuantError as error:
        return [type(error).__name__, str(error)]
    return None


class Rank:
    """Plays the acts."""

    def __init__(self):
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()

    def backward(self, model, inputs):
        model.zero_grad()
        model(inputs).backward()

    def run(self, model, state, steps=STEPS, dtype=torch.float32, start=0):
        """Steps on the gradients of this rank: what arrived at each, and what is held at the end."""
        arrived, layouts = [], []
        for step in range(start, start + steps):
            self.backward(model, gradients(self.rank, step, dtype))
            arrived.append(told(model.module))
            layouts.append(sorted(map(sorted, state._residuals._flat)))
        return {"arrived": arrived, "held": held(state), "layouts": layouts, "step": state.step}

    # -- acts --------------------------------------------------------------------------------------

    def steps(self):
        """The variants that have to equal the reference."""
        found = {}
        for name, options, wraps in [
            ("sum", {"reduce": "sum"}, {}),
            ("mean", {}, {"buckets": 9}),
            ("thresholds", {"threshold": BY_NAME, "negative_threshold": BELOW}, {"buckets": 9}),
            ("one bucket of thresholds", {"threshold": BY_NAME, "negative_threshold": BELOW}, {}),
            ("views", {}, {"buckets": 9, "gradient_as_bucket_view": True}),
            ("half", {}, {"dtype": torch.float16}),
            ("bfloat16", {"reduce": "sum"}, {"dtype": torch.bfloat16, "buckets": 9}),
        ]:
            model = wrapped(**wraps)
            state = comm.register(model, {"compression": "2bit", "threshold": 0.5, **options})
            found[name] = self.run(model, state, dtype=wraps.get("dtype", torch.float32))
        return found

    def warmup(self):
        """Two dense steps, as DDP's own, then compressed ones."""
        model, plain = wrapped(buckets=9), wrapped(buckets=9)
        state = two_bit.register(model, warmup=2)
        same = []
        for step in range(4):
            for each in (model, plain):
                self.backward(each, gradients(self.rank, step))
            same.append(told(model.module) == told(plain.module))
        return {"as dense": same, "held": held(state), "step": state.step}

    def accumulate(self):
        """Two micro-steps a synchronised one."""
        model = wrapped()
        state = two_bit.register(model, reduce="sum")
        arrived = []
        for step in range(3):
            model.zero_grad()
            with model.no_sync():
                model(gradients(self.rank, 2 * step)).backward()
            model(gradients(self.rank, 2 * step + 1)).backward()
            arrived.append(told(model.module))
        return {"arrived": arrived, "held": held(state), "step": state.step}

    def unused(self):
        """Parameter "a" is used by all, by rank 0 alone, and by nobody, in turns."""
        model = wrapped(buckets=9, find_unused_parameters=True)
        state = two_bit.register(model, reduce="sum")
        found = []
        for step in range(6):
            inputs = {name: 0.2 * value for name, value in gradients(self.rank, step).items()}
            inputs["a"] = torch.full((17,), 1.3)
            if step % 3 == 2 or (step % 3 == 1 and self.rank > 0):
                del inputs["a"]
            self.backward(model, inputs)
            grad = model.module.a.grad
            found.append([0.0 if grad is None else float(grad[0]), float(state.residual("a")[0])])
        return found

    def strange(self):
        """One value of rank 1's first step is not a number, one of rank 0's second is infinite."""
        model = wrapped()
        state = two_bit.register(model, reduce="sum")
        found = []
        for step in range(3):
            inputs = {name: torch.full(shape, 0.4) for name, shape in SIZES.items()}
            if self.rank == 1 and step == 0:
                inputs["c"][2, 3] = torch.nan
            if self.rank == 0 and step == 1:
                inputs["e"][5] = torch.inf
            self.backward(model, inputs)
            bad = {name: p.grad.isnan().sum().item() for name, p in model.module.named_parameters()}
            found.append([bad, model.module.c.grad[2, 3].item(), state.residual("c")[2, 3].item()])
        finite = all(state.residual(name).isfinite().all() for name in SIZES)
        return {"steps": found, "finite": bool(finite), "e": state.residual("e").tolist()}

    def scaled(self):
        """A gradient scaler that meets an overflow at the third step."""
        model = wrapped(buckets=9)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        state = two_bit.register(model, reduce="sum", scaler=scaler)
        scales = []
        for step in range(8):
            optimizer.zero_grad()
            inputs = gradients(self.rank, step)
            if step == 2 and self.rank == 1:
                inputs["d"][0, 0] = torch.inf
            scaler.scale(model(inputs)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        weights = {name: p.detach().flatten().tolist() for name, p in model.module.named_parameters()}
        return {"weights": weights, "held": held(state), "scales": scales}

    def convolutions(self):
        """A real network in channels_last, in small buckets: whether anything is lost."""
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 7, 3),
            nn.BatchNorm2d(7),
            nn.ReLU(),
            nn.Conv2d(7, 5, 3),
            nn.Flatten(),
            nn.Linear(80, 3),
        )
        net = net.to(memory_format=torch.channels_last)
        model = DistributedDataParallel(net, bucket_cap_mb=1e-3)
        state = two_bit.register(model, threshold=0.02, reduce="sum")
        exact = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in net.named_parameters()}
        total = {name: value.clone() for name, value in exact.items()}
        for step in range(4):
            draw = torch.Generator().manual_seed(10 * self.rank + step)
            images = torch.randn(4, 3, 8, 8, generator=draw).to(memory_format=torch.channels_last)
            own = torch.autograd.grad(net(images).square().sum(), list(net.parameters()))
            model.zero_grad()
            model(images).square().sum().backward()
            for (name, parameter), gradient in zip(net.named_parameters(), own, strict=True):
                exact[name] += gradient
                total[name] += parameter.grad
        worst = 0.0
        for name, whole in exact.items():
            residual = state.residual(name).double().contiguous()
            for tensor in (whole, residual):
                distributed.all_reduce(tensor)
            worst = max(worst, float((total[name] + residual - whole).abs().max() / whole.abs().max()))
        strides = [list(state.residual("0.weight").stride()), list(net[0].weight.stride())]
        return {"worst": worst, "strides": strides}

    def traffic(self):
        """Bytes handed to collectives in one step of the same network, dense and packed."""
        counted = {"dense": 0, "packed": 0, "other": 0}
        name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
        gather, reduce = getattr(distributed, name), distributed.all_reduce

        def counting_gather(output, tensor, *args, **kwargs):
            counted["packed"] += tensor.nbytes
            return gather(output, tensor, *args, **kwargs)

        def counting_reduce(tensor, *args, **kwargs):
            counted["dense"] += tensor.nbytes
            return reduce(tensor, *args, **kwargs)

        model = DistributedDataParallel(nn.Linear(256, 128, bias=False))
        state = two_bit.register(model, warmup=1)
        setattr(distributed, name, counting_gather)
        distributed.all_reduce = counting_reduce
        try:
            for _ in range(2):
                model(torch.randn(2, 256)).sum().backward()
        finally:
            setattr(distributed, name, gather)
            distributed.all_reduce = reduce
        return {**counted, "state": state.bytes_handed_in}

    def restored(self):
        """Half the steps, the state moved to other buckets, the other half; and all without the move."""
        model, straight = wrapped(buckets=9), wrapped(buckets=9)
        state, whole = two_bit.register(model), two_bit.register(straight)
        self.run(straight, whole, 3)
        expected = self.run(straight, whole, 3, start=3)
        self.run(model, state, 3)
        other = wrapped()
        fresh = two_bit.register(other)
        fresh.load_state_dict(state.state_dict())
        found = self.run(other, fresh, 3, start=3)
        before = held(fresh)
        foreign = {**state.state_dict(), "rank": 1 - self.rank}
        short = {**state.state_dict(), "parameters": {"a": state.state_dict()["parameters"]["a"]}}
        refused = [
            refusal(lambda given=given: fresh.load_state_dict(given)) for given in (foreign, short, {}, None)
        ]
        untouched = held(fresh) == before
        return {"found": found, "expected": expected, "refused": refused, "untouched": untouched}

    def refused(self):
        """What may not be registered, on every rank."""
        model = wrapped()
        found = {"rank 1 differs": refusal(lambda: two_bit.register(model, 0.5 + self.rank))}
        two_bit.register(model)  # a refusal leaves the model free
        found["second"] = refusal(lambda: two_bit.register(model))
        found["second, by name"] = refusal(lambda: comm.register(model, {"compression": "2bit"}))
        self.backward(model, gradients(self.rank, 0))
        found["still works"] = told(model.module)["a"]
        built_in = wrapped()
        built_in._register_builtin_comm_hook(distributed.BuiltinCommHookType.ALLREDUCE)
        found["built in"] = refusal(lambda: two_bit.register(built_in))
        return found

    def sparse(self):
        """What an embedding with sparse gradients meets, at its first step."""
        model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 1))
        parallel = DistributedDataParallel(model)
        state = two_bit.register(parallel, warmup=5)
        found = {"backward": refusal(lambda: parallel(torch.tensor([self.rank])).sum().backward())}
        found["residual"] = list(state.residual("module.1.weight").shape)
        found["other"] = refusal(lambda: state.residual("1.wieght"))
        return found

    def alone(self):
        """A job of one rank compresses as any other."""
        model = wrapped()
        return self.run(model, two_bit.register(model))

    def served(self):
        """The last two ranks hold the shards, the first two work; rank 1 stops a round before rank 0."""
        servers = [self.ranks - 1, self.ranks - 2]
        if self.rank in servers:
            return {"rounds": two_bit.serve(servers)}
        arrived, net = [], Products()
        with two_bit.Worker(net, servers, BY_NAME, BELOW, warmup=1) as worker:
            net.c.grad = torch.zeros(SIZES["c"]).to_sparse()
            sparse = refusal(worker.exchange)
            for step in range(STEPS if self.rank == 0 else STEPS - 1):
                for name, value in gradients(self.rank, step).items():
                    net.get_parameter(name).grad = value
                worker.exchange()
                arrived.append(told(net))
                state = worker.state_dict()
                kept = copy.deepcopy(state)  # forgotten and taken back
                for item in state["parameters"].values():
                    item["residual"].zero_()
                worker.load_state_dict(kept)
        residual = {name: item["residual"].flatten().tolist() for name, item in state["parameters"].items()}
        closed = refusal(worker.exchange)
        whose = [state["rank"], state["ranks"], state["step"]]
        return {
            "arrived": arrived,
            "held": residual,
            "whose": whose,
            "closed": closed,
            "sparse": sparse,
            "pushed": worker.bytes_pushed,
        }

    def unlike(self):
        """Workers of other weights, then of other steps, then made alike; what each is told."""
        workers = distributed.new_group([0, 1])
        if self.rank == 2:
            return [two_bit.serve([2]) for _ in range(3)]
        found = {}
        for act in "weights", "steps", "alike":
            torch.manual_seed(self.rank if act != "steps" else 0)
            net = nn.Linear(8, 4)
            optimizer = torch.optim.Adam(net.parameters())
            with two_bit.Worker(net, [2], 0.01) as worker:
                if act == "steps":
                    worker.load_state_dict({**worker.state_dict(), "step": self.rank})
                if act == "alike":
                    two_bit.from_first_rank(net, optimizer, group=workers)

                def work(worker=worker, net=net, optimizer=optimizer):
                    for _ in range(3):
                        net(torch.full((2, 8), 1.0 + self.rank)).square().mean().backward()
                        worker.exchange()
                        optimizer.step()

                found[act] = refusal(work)
            found[f"{act}, weight"] = float(net.weight.detach()[0, 0])
        return found

    def orphaned(self):
        """Rank 2 serves; rank 1 is killed after its first exchange; who notices what."""
        if self.rank == 2:
            return refusal(lambda: two_bit.serve([2]))
        net = Products()

        def work():
            with two_bit.Worker(net, [2]) as worker:
                for step in range(3):
                    for name, value in gradients(self.rank, step).items():
                        net.get_parameter(name).grad = value
                    worker.exchange()
                    if self.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)

        return refusal(work)

    def misled(self):
        """Workers that do not agree; ranks that are not what they say."""
        servers = [2, 3]
        found = {
            "roles": refusal(lambda: two_bit.serve([0, 0])),
            "all serve": refusal(lambda: two_bit.serve(range(4))),
        }
        if self.rank in servers:
            found["worker"] = refusal(lambda: two_bit.Worker(Products(), servers))
            found["disagree"] = refusal(lambda: two_bit.serve(servers))
        else:
            found["server"] = refusal(lambda: two_bit.serve(servers))
            found["disagree"] = refusal(lambda: two_bit.Worker(Products(), servers, 0.5 + self.rank))
        return found


def main(player_of=Rank):
    """Plays the acts of a kind of player."""
    store, rank, ranks, out, *acts = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    player = player_of()
    found = {act: getattr(player, act)() for act in acts}
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    if "orphaned" not in acts:  # nor is there anybody to wait for
        distributed.barrier()
    leave()


if __name__ == "__main__":
    main()
