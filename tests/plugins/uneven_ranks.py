"""Ranks that are not alike: one is late, measures another thing, or has buffers of its own.

Started by `test_uneven_ranks`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import PluginOptions, PluginRun, describe, read_tree
from dynaquant_core.plugins.agreement import DEADLINE
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.meeting import Meeting
from tests.plugins import ranks
from tests.plugins.kit import slow_disk

#: Seconds that ranks wait for one that is late, and by how much it is.
SHORT, LATE = 2.0, 6.0

#: More than a TCPStore takes as one value.
HEAVY = 8 << 20


class Gone(dict[str, Any]):
    """What a parameter's state is read from, where the disk is gone that it lay on."""

    def get(self, key: str, default: Any = None) -> Any:
        """Reads it."""
        raise OSError("the disk with the averages is gone")


class Uneven(ranks.Rank):
    """A rank with more acts."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        logging.getLogger("dynaquant_core.training").addHandler(self.told)

    def saves(self, run: PluginRun, model: nn.Module, number: int) -> dict[str, Any]:
        """One save, as a plugin makes it; what this rank measured for it, and what was stored."""
        tree = {"model": model.state_dict()}
        folder = self.folder.parent / f"{type(model).__name__}-{number}"
        self.calls = 0
        run.meet(number)
        run.choose(number, tree)
        found: dict[str, Any] = {"shared": self.calls}
        if self.rank == 0:
            run.save(folder, number, tree)
            run.wait()
            found |= {"met": describe(folder).met, "stored": read_tree(folder)["model"]}
        return found | {"calls": self.calls}

    def late(self) -> list[dict[str, Any]]:
        """Four saves; for the second one rank 1 comes when rank 0 waits no more."""
        run = self.run(self.losses, threshold=0.05)
        run.watch(self.model, self.optimizer)
        found = []
        for number in range(4):
            self.train(1)
            if number == 1:
                os.environ[DEADLINE] = str(SHORT)
                time.sleep(LATE * self.rank)
            before = time.monotonic()
            save = self.saves(run, self.model, number)
            save["seconds"] = time.monotonic() - before
            os.environ.pop(DEADLINE, None)
            own = self.model.state_dict()
            stored = save.pop("stored", own)
            save["exact"] = all(torch.equal(own[name], value) for name, value in stored.items())
            found.append(save)
        self.train(1)
        mine = self.model[0].weight.detach()
        others = [torch.zeros_like(mine) for _ in range(self.ranks)]
        distributed.all_gather(others, mine)
        found.append({"same": all(torch.equal(each, mine) for each in others)})
        return found

    def zeros(self) -> list[dict[str, Any]]:
        """A share of outputs that are right, of other examples on each rank; at first none is."""
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        inputs, right = torch.randn(500, 64), torch.randn(64, 64)
        begun = False

        def evaluate() -> float:
            self.calls += 1
            far = (model(inputs) - inputs @ right.T).abs()
            return float((far < (2.0 if self.rank else 0.05)).float().mean()) if begun else 0.0

        run = self.run(evaluate, threshold=0.01, mode="max")
        run.watch(model, optimizer)
        found = []
        for number in range(4):
            if begun:
                with torch.no_grad():
                    model.weight.copy_(right + 0.0004 * number * torch.randn(64, 64).sign())
                    model.bias.zero_()
            model(inputs[:4]).sum().backward()
            optimizer.step() if not begun else optimizer.zero_grad()
            save = self.saves(run, model, number)
            if self.rank == 0:
                save |= self._on_my_examples(model, evaluate, save.pop("stored"))
            found.append(save)
            begun = True
        return found

    @torch.no_grad()
    def _on_my_examples(
        self, model: nn.Module, evaluate: Callable[[], float], stored: dict[str, torch.Tensor]
    ) -> dict[str, float]:
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        live = evaluate()
        model.load_state_dict(stored)
        found = {"live": live, "read": evaluate()}
        model.load_state_dict(kept)
        return found

    def heavy(self) -> list[dict[str, Any]]:
        """A buffer that no two ranks have alike is large; then the job goes on."""
        torch.manual_seed(0)
        model = nn.Linear(64, 8)
        model.register_buffer("book", torch.full((HEAVY // 4,), float(self.rank)))
        inputs = torch.randn(64, 64)

        def evaluate() -> float:
            self.calls += 1
            return float(model(inputs).square().mean() + model.book.mean())

        run = self.run(evaluate, threshold=0.05)
        run.watch(model, torch.optim.Adam(model.parameters(), 1e-2))
        found = [self.saves(run, model, number) for number in range(2)]
        for save in found:
            save.pop("stored", None)
        distributed.barrier(distributed.new_group())
        return [*found, {"book": float(model.book.mean())}]

    def ahead(self) -> list[dict[str, Any]]:
        """The writer's save fails behind it; where each rank hears of it."""
        run = PluginRun(PluginOptions(exact="*"), framework="none")
        run.watch(self.model, self.optimizer)
        if self.rank == 0:
            file = self.folder.parent / "file"
            file.touch()
            run.save(file / "inside", 0, {"model": self.model.state_dict()})
            run._line.join()
        heard = []
        for call in (lambda: run.look_ahead(1), lambda: run.meet(1)):
            try:
                call()
                heard.append("nothing")
            except DynaQuantError as error:
                heard.append(str(error))
            self.train(1)
        return [{"heard": heard}]

    def one_sided(self) -> list[dict[str, Any]]:
        """Rank 0 alone can measure; what each hears, also where all is exact and nothing is searched."""
        os.environ[DEADLINE] = str(SHORT)
        found: list[dict[str, Any]] = []
        for exact in ((), "*"):
            run = PluginRun(PluginOptions(exact=exact), framework="none")
            run.watch(self.model, self.optimizer, evaluate=None if self.rank else self.losses)
            try:
                self.saves(run, self.model, len(found))
                found.append({"heard": None})
            except DynaQuantError as error:
                found.append({"heard": f"{type(error).__name__}: {error}"})
            run.close()
        os.environ.pop(DEADLINE)
        return found

    def paged_out(self) -> list[dict[str, Any]]:
        """An optimizer keeps its averages elsewhere, and rank 1 cannot read them; what each rank hears."""
        optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        run = PluginRun(PluginOptions(evaluate=self.losses, threshold=0.05), framework="none")
        run.watch(self.model, optimizer)
        if self.rank == 1:
            optimizer.state[self.model[0].weight] = Gone()
        os.environ[DEADLINE] = str(ranks.DEADLINE)
        heard = "nothing"
        try:
            run.choose(1, {"model": self.model.state_dict()})
        except (DynaQuantError, OSError) as error:
            heard = f"{type(error).__name__}: {error}"
        os.environ.pop(DEADLINE)
        distributed.barrier()
        return [{"heard": heard}]

    def at_once(self) -> list[dict[str, Any]]:
        """A save and, before it is written, its load on every rank; then one on rank 0 alone."""
        slow_disk(0.7)
        run = self.run(self.losses, threshold=0.05)
        run.watch(self.model, self.optimizer)
        tree = {"model": self.model.state_dict()}
        folder = self.folder.parent / "at-once"
        found = []
        for number in range(2):  # the second replaces the first
            self.train(1)
            run.meet(number)
            run.choose(number, tree)
            if self.rank == 0:
                run.save(folder, number, tree, note={"number": str(number)})
            run.load(folder)
            found.append({"number": Marker.read(folder).note["number"]})
            distributed.barrier()
        if self.rank == 0:
            run.load(folder)
        distributed.barrier()
        return found

    def anew(self) -> list[dict[str, Any]]:
        """Rank 1 stays away from a save, as natively; then the same processes meet in a new process group."""
        os.environ[DEADLINE] = str(2 * SHORT)
        distributed.barrier()
        meetings = [Meeting(step, None, call="save()", alone=True) for step in range(4)]
        for meeting in meetings[: 3 - 2 * self.rank]:
            meeting.come(meeting.step, None)
        distributed.barrier()
        distributed.destroy_process_group()
        store = f"file://{self.folder.parent / 'anew'}"
        distributed.init_process_group("gloo", init_method=store, rank=self.rank, world_size=self.ranks)
        try:
            meetings[3].come(3, None)
        except DynaQuantError as error:
            return [{"heard": str(error)}]
        finally:
            os.environ.pop(DEADLINE)
            distributed.barrier()
        return [{"heard": None, "together": meetings[3].together}]

    def run(self, evaluate: Callable[[], Any], **options: Any) -> PluginRun:
        """A run whose saves that fail are told in the log."""
        return PluginRun(PluginOptions(evaluate=evaluate, on_error="warn", **options), framework="none")


if __name__ == "__main__":
    ranks.Rank = Uneven  # type: ignore[misc]
    ranks.main()
