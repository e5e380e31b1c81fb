"""One rank of a job with unusual models, optimizers and scalers; started by `tests.gloo.play`.

``python -m tests.comm.odd_ranks STORE RANK RANKS OUT ACT...`` plays the acts and writes what it saw to OUT.
"""

from __future__ import annotations

import copy
import io
import time
from functools import partial

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm import two_bit
from dynaquant_core.comm.two_bit.exchange import all_gather
from tests.comm.ranks import main, refusal


class Two(nn.Module):
    """Its gradients are the inputs, for both parameters or for "b" alone."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4, dtype=dtype))
        self.b = nn.Parameter(torch.zeros(4, dtype=dtype))

    def forward(self, a, b, use_a=True):
        found = (self.b * b).sum()
        return found + (self.a * a).sum() if use_a else found


def full(value):
    return torch.full((4,), float(value))


def first(tensor):
    return float(tensor.detach().flatten()[0])


class Rank:
    """Plays the acts."""

    def __init__(self):
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()

    def two_optimizers(self):
        """One scaler, an optimizer a parameter, of torch's plain and fused ones."""
        plain = {str(fused): self._two_optimizers(fused) for fused in (False, True)}
        return {**plain, "looked at": self._two_optimizers(fused=False, looks=True)}

    def _two_optimizers(self, fused, looks=False):
        """The gradient of "b" overflows in the first of four steps; somebody looks before optimizers step."""
        model = DistributedDataParallel(Two())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        state = two_bit.register(model, 0.5, reduce="sum", scaler=scaler)
        named = list(model.module.named_parameters())
        own = {name: torch.optim.SGD([item], lr=1.0, fused=fused) for name, item in named}
        for step in range(4):
            model.zero_grad()
            b = torch.inf if step == 0 and self.rank == 1 else 0.7
            scaler.scale(model(full(0.7), full(b))).backward()
            for optimizer in own.values():
                if looks:
                    state.state_dict()
                    copy.deepcopy(state)
                scaler.step(optimizer)
            scaler.update()
        return {name: [first(item), first(state.residual(name))] for name, item in named}

    def two_models(self):
        """One scaler and one optimizer for two models, the other of which overflows in the second step."""
        one, other = DistributedDataParallel(Two()), DistributedDataParallel(Two())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        state = two_bit.register(one, 0.5, reduce="sum", scaler=scaler)
        two_bit.register(other, 0.5, reduce="sum", scaler=scaler)
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=1.0)
        for step in range(3):
            optimizer.zero_grad()
            state.state_dict()
            strange = torch.inf if step == 1 else 0.7
            loss = one(full(0.7), full(0.7)) + other(full(strange), full(0.7))
            scaler.scale(loss).backward()
            state.residual("a")  # of this model all was finite
            scaler.step(optimizer)
            scaler.update()
        return [first(one.module.a), first(state.residual("a"))]

    def joined(self):
        """Rank 1 has more data than rank 0 (`join`); "a" is used by both, in turns, or at first."""
        return {used: self._joined(used) for used in ("both", "in turns", "at first")}

    def _joined(self, used):
        """[a, b]: given by this rank, received by it, and held."""
        model = DistributedDataParallel(Two(), find_unused_parameters=True, bucket_cap_mb=1e-5)
        state = two_bit.register(model, 0.5, reduce="sum")
        given, received = [0.0, 0.0], [0.0, 0.0]
        with model.join():
            for step in range(3 + 4 * self.rank):
                model.zero_grad()
                whether = {"both": True, "in turns": (step + self.rank) % 2 == 0, "at first": step < 2}[used]
                model(full(0.7), full(-0.3), whether).backward()
                for place, (value, parameter) in enumerate([(0.7, model.module.a), (-0.3, model.module.b)]):
                    given[place] += value if whether or place else 0.0
                    received[place] += 0.0 if parameter.grad is None else first(parameter.grad)
        return [given, received, [first(state.residual(name)) for name in "ab"]]

    def run_out(self):
        """Rank 0 has no batch left when the others begin; they hold the same weights, or each its own."""
        return {which: self._run_out(which) for which in ("alike", "apart")}

    def _run_out(self, which):
        """What was refused, and how many steps were taken."""
        model = DistributedDataParallel(Two())
        two_bit.register(model, 0.5)
        if which == "apart":
            model.module.a.detach().add_(self.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        taken = 0

        def work():
            nonlocal taken
            with model.join():
                for _ in range(3 if self.rank else 0):
                    optimizer.zero_grad()
                    model(full(0.7), full(-0.3)).backward()
                    optimizer.step()
                    taken += 1

        return [refusal(work), taken]

    def scaler_of_one(self):
        """Only rank 0 has a scaler."""
        scaler = torch.amp.GradScaler("cpu") if self.rank == 0 else None
        return refusal(lambda: two_bit.register(DistributedDataParallel(Two()), scaler=scaler))

    def stale(self):
        """After a step that left "a" a gradient, it is frozen, not used, or in autograd.grad alone."""
        found = {}
        for way in ("frozen", "unused", "asked for"):
            model = DistributedDataParallel(Two(), find_unused_parameters=True)
            state = two_bit.register(model, 0.5, reduce="sum")
            model(full(1.3), full(1.3)).backward()
            held = [first(state.residual("a"))]
            model.module.a.requires_grad_(way != "frozen")
            for _ in range(3):
                model.module.b.grad = None
                if way == "asked for":
                    torch.autograd.grad(model.module.a.sum(), model.module.a)
                model(full(1.3), full(1.3), use_a=way == "frozen").backward()
                held.append(first(state.residual("a")))
            found[way] = held
        return found

    def idle(self):
        """What is held for "a" and where it is, while no rank uses it: gradients in buckets, scaled ones."""
        found = {}
        for name, views, scaled in (("views", True, False), ("scaled", False, True)):
            model = Two()
            ddp = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=views)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if scaled else None
            state = two_bit.register(ddp, threshold=1.0, reduce="sum", scaler=scaler)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            seen = []
            for use_a, given in ((True, 3.5), (False, 0.0), (False, float("inf")), (False, 0.0)):
                optimizer.zero_grad(set_to_none=not views)
                loss = ddp(full(given), full(0.0 if use_a or not scaled else given), use_a)
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                seen.append([first(state.residual("a")), first(model.a)])
            found[name] = seen
        return found

    def rounded(self):
        """Of half precision, with thresholds that it does not have: what is lost, as a share of the sums."""
        found = {}
        for dtype in (torch.bfloat16, torch.float16):
            for reduce in ("sum", "mean"):
                model = DistributedDataParallel(Two(dtype))
                state = two_bit.register(model, 0.1, reduce=reduce)
                given = arrived = 0.0
                for step in range(60):
                    model.zero_grad()
                    value = (0.06 + 0.01 * (step % 3)) * (1 + self.rank)
                    value = float(torch.tensor(value, dtype=dtype))
                    model(full(value).to(dtype), full(value).to(dtype)).backward()
                    given += value
                    arrived += first(model.module.a.grad) * (1 if reduce == "sum" else self.ranks)
                both = torch.tensor([given, first(state.residual("a"))], dtype=torch.float64)
                distributed.all_reduce(both)
                found[f"{dtype} {reduce}"] = (arrived + float(both[1])) / float(both[0]) - 1
        return found

    def copied(self):
        """Copies hold the residual, exchange nothing, and may be registered anew."""
        model = DistributedDataParallel(Two())
        state = two_bit.register(model, 0.5, reduce="sum", scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
        (2 * model(full(0.7), full(0.7))).backward()
        twin, average = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        known = [two_bit.registered(one) for one in (model, twin, average.module, model.module)]
        anew = two_bit.register(twin, 0.5, reduce="sum")
        twin.zero_grad()
        twin(full(0.7), full(0.7)).backward()
        other = copy.deepcopy(state)
        return {
            "again": [first(twin.module.a.grad), first(anew.residual("a"))],
            "copy": [other.attached, first(other.residual("a")), first(state.residual("a"))],
            "registered": [one is state if one is not None else None for one in known],
            "kinds": [type(average.module).__name__, type(loaded).__name__],
        }

    def frozen_between(self):
        """Frozen between DDP and the compression: DDP still exchanges it."""
        model = DistributedDataParallel(Two(), find_unused_parameters=True)
        model.module.a.requires_grad_(False)
        two_bit.register(model)
        return refusal(lambda: model(full(1), full(1)).backward())

    def ignored(self):
        """What DDP was told to ignore is left alone, though it differs between ranks."""
        net = Two()
        net.part = nn.Module()
        net.part.own = nn.Parameter(torch.zeros(2 + self.rank))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["part.own"])
        model = DistributedDataParallel(net)
        state = two_bit.register(model)
        model(full(0.7), full(0.7)).backward()
        return [sorted(state.state_dict()["parameters"]), first(net.a.grad)]

    def first_rank(self):
        """Tensors of all kinds, what DDP was told to ignore, an optimizer of other steps, an average."""
        net = Two(torch.bfloat16)
        net.part = nn.Module()
        net.part.own = nn.Parameter(torch.full((2 + self.rank,), float(self.rank)))
        net.register_buffer("turned", torch.arange(6.0).view(2, 3).T)
        net.register_buffer("count", torch.tensor(0))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["part.own"])
        model = DistributedDataParallel(net)
        optimizer = torch.optim.Adam([net.a, net.b])
        average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
        for one in (*net.parameters(), *net.buffers(), *average.parameters()):
            one.detach().add_(self.rank)
        refused = None
        for step in range(2):
            if step or self.rank == 0:
                net.a.grad, net.b.grad = (torch.full((4,), 1.0 + self.rank).bfloat16() for _ in range(2))
                optimizer.step()
            if not step:
                kept = net.a.detach().clone()
                refused = refusal(lambda: two_bit.from_first_rank(model, optimizer))
                untouched = torch.equal(kept, net.a)
                optimizer.state.clear()
        two_bit.from_first_rank(model, optimizer, average)
        held = [*net.parameters(), *net.buffers(), *average.parameters()]
        held += [value for own in optimizer.state.values() for value in own.values()]
        told = [one.detach().float().flatten().tolist() for one in held if one is not net.part.own]
        return {"held": told, "own": first(net.part.own), "refused": refused, "untouched": untouched}

    def first_rank_of_copies(self):
        """An optimizer whose state_dict() gives copies; the weights after the next step."""
        net = Two()
        optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.1 + self.rank))
        optimizer.register_state_dict_post_hook(lambda _, state: copy.deepcopy(state))
        for step in range(2):
            net.zero_grad()
            net(full(1 + self.rank * (not step)), full(0.5 - self.rank * (not step))).backward()
            if step:
                two_bit.from_first_rank(net, optimizer)
            optimizer.step()
        return [net.a.tolist(), net.b.tolist()]

    def first_rank_of_marked(self):
        """A buffer that is conjugated, and one that is negated, by a flag alone."""
        net, values = nn.Module(), torch.complex(full(1 + self.rank), full(2 + self.rank))
        net.register_buffer("conjugated", values.conj())
        net.register_buffer("negated", values.clone().conj().imag)
        two_bit.from_first_rank(net)
        return [torch.view_as_real(net.conjugated.resolve_conj()).tolist(), net.negated.tolist()]

    def steps_apart(self):
        """A warm-up that some ranks have behind them and others have not."""
        model = DistributedDataParallel(Two())
        state = two_bit.register(model, warmup=3)
        state.load_state_dict({**state.state_dict(), "step": 3 * self.rank})
        return refusal(lambda: model(full(1), full(1)).backward())

    def let_go(self):
        """Whether what decodes is gone by the time that its sum is there, however slow it goes."""
        gone = []

        class Slow:
            def __del__(self):
                time.sleep(0.3)
                gone.append(True)

        def decode(codes, slow):
            return codes.sum(0)

        group = distributed.group.WORLD
        future = all_gather(torch.ones(2, dtype=torch.uint8), group, partial(decode, slow=Slow()))
        return [future.wait().tolist(), list(gone)]

    def static(self):
        """A static graph, an unused parameter in it, and a compiled model."""
        model = DistributedDataParallel(Two(), static_graph=True)
        state = two_bit.register(model, 0.5, reduce="sum")
        arrived = []
        for _ in range(3):
            model.zero_grad()
            model(full(0.7), full(0.7), use_a=False).backward()
            arrived.append(first(model.module.b.grad))
        compiled = torch.compile(DistributedDataParallel(Two()), backend="eager")
        two_bit.register(compiled, 0.5)
        compiled(full(0.7), full(0.7)).backward()
        return [arrived, first(state.residual("b")), first(compiled._orig_mod.module.a.grad)]

    def part_of_the_job(self):
        """Two groups of two ranks, each of which trains for itself."""
        groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
        model = DistributedDataParallel(Two(), process_group=groups[self.rank // 2])
        state = two_bit.register(model, 0.5, reduce="sum")
        sign = 1 if self.rank < 2 else -1
        model(full(0.7 * sign), full(0.2)).backward()
        return [state.rank, state.ranks, first(model.module.a.grad)]


if __name__ == "__main__":
    main(Rank)
