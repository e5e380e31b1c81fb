"""One rank of a data-parallel job on the digits; a program of its own, started by `test_parallel`.

``python -m tests.plugins.ranks STORE RANK RANKS OUT ACT...`` joins the others through STORE, plays the acts
one after the other with one model, and writes what it saw to OUT.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.distributed import distributed_c10d
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.plugins import PluginOptions, PluginRun, read_tree
from dynaquant_core.plugins.agreement import DEADLINE as DEADLINE_NAME
from dynaquant_core.plugins.parallel import choose_together
from dynaquant_core.search import Manager
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training.choice import Choice, Chooser, Promise
from dynaquant_core.training.evaluation import Evaluation
from tests.gloo import leave

THRESHOLD = 0.02
#: Long enough for a busy machine, short enough for a test.
DEADLINE = 60.0
SHORT = 4.0

BATCHES = 5


class Rank:
    """A rank: trains under DDP, searches together with the others and, beside it, alone."""

    def __init__(self, out: Path) -> None:
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()
        torch.manual_seed(0)
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)
        self.model = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
        self.parallel = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.folder = out.with_suffix("")
        self.step = 0
        self.calls = 0
        self.told = _Told()
        logging.getLogger("dynaquant_core.plugins").addHandler(self.told)

    def train(self, steps: int = 5) -> None:
        """Optimizer steps, each rank on images of its own."""
        self.parallel.train()
        for _ in range(steps):
            self.step += 1
            mine = torch.randint(0, 1400, (32,), generator=torch.Generator().manual_seed(self.step))
            mine = (mine + 37 * self.rank) % 1400
            loss = cross_entropy(self.parallel(self.images[mine]), self.labels[mine])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def losses(self, model: nn.Module | None = None, part: int = 0) -> list[float]:
        """Losses on five held-out batches; ``part`` shifts them."""
        self.calls += 1
        found = []
        for batch in range(BATCHES):
            at = slice(1400 + 70 * batch + part, 1400 + 70 * batch + part + 60)
            found.append(float(cross_entropy((model or self.model)(self.images[at]), self.labels[at])))
        return found

    def search(
        self,
        evaluate: Callable[[], Any],
        saves: int,
        *,
        alone: bool = True,
        even: bool = False,
        deadline: float = DEADLINE,
        method: str | None = None,
    ) -> list[dict[str, Any]]:
        """Trains and saves in turn; what each save's search found, together and alone."""
        ways = {"together": lambda chooser, saving: choose_together(chooser, saving, deadline)}
        if alone:
            ways["alone"] = lambda chooser, saving: chooser.choose(saving)
        promise = Promise(Evaluation(evaluate, self.model), THRESHOLD, "min")
        choosers = {way: Chooser(promise, Manager()) for way in ways}
        stores = {way: CheckpointStore(self.folder / f"{way}-{self.step}", method=method) for way in ways}
        found = []
        for _ in range(saves):
            self.train()
            if even:
                self.even_out()
            record: dict[str, Any] = {"step": self.step}
            for way, choose in ways.items():
                saving = stores[way].begin(self.step, {"model": self.model.state_dict()}, model=self.model)
                before = {name: value.clone() for name, value in self.model.state_dict().items()}
                self.calls, started = 0, time.monotonic()
                choice = choose(choosers[way], saving)
                record[way] = _record(choice, self.calls, time.monotonic() - started)
                record[way]["state"] = choosers[way].state.as_dict()
                record[way]["untouched"] = _are_same(before, self.model.state_dict())
                record[way]["decoded"] = _digest(choice.draft.decoded)
                saving.seal(choice.draft).write()
            found.append(record)
        for store in stores.values():
            store.close()
        return found

    def even_out(self) -> None:
        """Gives every rank rank 0's statistics, so that the ranks' lone searches can do without them."""
        for buffer in self.model.buffers():
            distributed.broadcast(buffer, 0)

    # -- acts --------------------------------------------------------------------------------------

    def shared(self) -> list[dict[str, Any]]:
        """Nothing is wrong; the run comes to rest, with several axes to search and with one."""
        self.train(120)
        return self.search(self.losses, 6, method="dynaquant") + self.search(self.losses, 6)

    def many(self) -> list[dict[str, Any]]:
        """As `shared`, but only the first rank searches alone as well: the processors are few."""
        self.train(120)
        return self.search(self.losses, 6, alone=self.rank == 0, method="dynaquant")

    def often(self) -> list[int]:
        """Twenty saves, as a plugin makes them; how many notes lie in the job's store after each.

        In every fifth a rank cannot measure: a search that ends in an error leaves no more than another.
        """
        fails = False

        def evaluate() -> list[float]:
            if fails:
                _raise()
            return self.losses()

        options = PluginOptions(evaluate=evaluate, threshold=THRESHOLD, on_error="warn")
        run, found = PluginRun(options, framework="none"), []
        run.watch(self.model, self.optimizer)
        for save in range(20):
            self.train(1)
            fails = save % 5 == 3 and self.rank == save % 2
            tree = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            run.meet(self.step)
            run.choose(self.step, tree)
            if self.rank == 0:
                run.save(self.folder / f"often-{self.step}", self.step, tree)
            distributed.barrier()
            found.append(distributed_c10d._get_default_store().num_keys())
            distributed.barrier()
        run.close()
        return found

    def exact(self) -> list[str]:
        """Of what kind two checkpoints are that keep every bit."""
        run, kinds = PluginRun(PluginOptions(exact=("*",), moments="exact"), framework="none"), []
        run.watch(self.model, self.optimizer)
        for _ in range(2):
            self.train(1)
            tree = {"model": self.model.state_dict()}
            run.choose(self.step, tree)
            if self.rank == 0:
                run.save(self.folder / f"exact-{self.step}", self.step, tree)
                kinds.append(run.wait().kind)
        run.close()
        return kinds

    def gives_up(self) -> list[list[Any]]:
        """Five saves of a plugin; in the fourth rank 0 measures for longer than rank 1 waits for it.

        Of each: what kind it is, what was measured of it, and what is measured of what was stored.
        """
        sleeps = False

        def evaluate() -> list[float]:
            if sleeps and self.rank == 0:
                time.sleep(1.5 * SHORT)
            return self.losses()

        options = PluginOptions(evaluate=evaluate, threshold=THRESHOLD, on_error="warn")
        run, found, stored = PluginRun(options, framework="none"), [], copy.deepcopy(self.model)
        run.watch(self.model, self.optimizer)
        self.train(120)
        for save in range(5):
            self.train(2)
            sleeps = save == 3
            os.environ[DEADLINE_NAME] = str(SHORT if sleeps else DEADLINE)
            tree = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            run.choose(self.step, tree)
            if self.rank == 0:
                folder = self.folder / f"gives-up-{self.step}"
                run.save(folder, self.step, tree)
                info = run.wait()
                stored.load_state_dict(read_tree(folder)["model"])
                assert info.quality is not None, "rank 0 needed another answer of rank 1"
                found.append([info.kind, info.quality["search"], _mean(self.losses(stored.eval()))])
            distributed.barrier()
        run.close()
        return found

    def reduced(self) -> list[dict[str, Any]]:
        """Every rank evaluates images of its own, and the values are averaged over the ranks."""

        def evaluate() -> list[float]:
            values = torch.tensor(self.losses(part=self.rank))
            distributed.all_reduce(values)
            return (values / self.ranks).tolist()

        return self.search(evaluate, 2, even=True)

    def reduced_later(self) -> list[dict[str, Any]]:
        """As `shared` in the first save, as `reduced` in the second."""
        self.train(120)
        last = self.step + 5

        def evaluate() -> list[float]:
            if self.step <= last:
                return self.losses()
            values = torch.tensor(self.losses(part=self.rank))
            distributed.all_reduce(values)
            return (values / self.ranks).tolist()

        return self.search(evaluate, 2, even=True)

    def wrapped(self) -> list[dict[str, Any]]:
        """The evaluated model is the wrapped one, which sends its buffers around."""
        return self.search(lambda: self.losses(self.parallel), 1, even=True)

    def apart(self) -> list[dict[str, Any]]:
        """Every rank evaluates images of its own."""
        return self.search(lambda: self.losses(part=self.rank), 2)

    def diverged(self) -> list[dict[str, Any]]:
        """The model's quality is not a number."""
        return self.search(lambda: math.nan, 1)

    def failing(self, who: int, what: Callable[[], None], deadline: float) -> list[dict[str, Any]]:
        """Rank ``who`` does something else from its first candidate on (one that is slow: there alone)."""

        def evaluate() -> list[float]:
            losses = self.losses()
            if self.rank == who and (self.calls >= 2 if what is _raise else self.calls == 2):
                what()
            return losses

        found = self.search(evaluate, 1, alone=False, deadline=deadline)
        distributed.barrier()
        return found

    def raises(self) -> list[dict[str, Any]]:
        return self.failing(1, _raise, DEADLINE)

    def leader_raises(self) -> list[dict[str, Any]]:
        return self.failing(0, _raise, DEADLINE)

    def hangs(self) -> list[dict[str, Any]]:
        return self.failing(self.ranks - 1, lambda: time.sleep(2 * SHORT), SHORT)

    def leader_hangs(self) -> list[dict[str, Any]]:
        return self.failing(0, lambda: time.sleep(2 * SHORT), SHORT)

    def dies(self) -> list[dict[str, Any]]:
        return self.search(self._dying(1), 1, alone=False, deadline=SHORT)

    def leader_dies(self) -> list[dict[str, Any]]:
        return self.search(self._dying(0), 1, alone=False, deadline=SHORT)

    def _dying(self, who: int) -> Callable[[], list[float]]:
        def evaluate() -> list[float]:
            if self.rank == who and self.calls == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.losses()

        return evaluate


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _raise() -> None:
    raise RuntimeError("the disk with the images is gone")


class _Told(logging.Handler):
    """Keeps the messages of the log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _are_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def _digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def _record(choice: Choice, calls: int, seconds: float) -> dict[str, Any]:
    return {
        "config": choice.draft.config.as_dict(),
        "report": choice.report,
        "error": str(choice.error) if choice.error else None,
        "calls": calls,
        "seconds": seconds,
    }


def main() -> None:
    """Plays the acts."""
    store, rank, ranks, out, *acts = sys.argv[1:]
    torch.set_num_threads(1)
    logging.getLogger("dynaquant_core").setLevel(logging.INFO)
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    player = Rank(Path(out))
    found: dict[str, Any] = {}
    for act in acts:
        player.told.messages.clear()
        found[act] = {"saves": getattr(player, act)(), "told": player.told.messages.copy()}
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    if not any("dies" in act for act in acts):
        leave()


if __name__ == "__main__":
    main()
