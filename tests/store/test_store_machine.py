"""A store driven at random beside a model of it: saves, deletions, pins and compaction in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.store.kit import exact_store, is_same, small_state


class StoreMachine(RuleBasedStateMachine):
    """Save, go back, delete, pin, compact, restart, crash leftovers: what is on disk is what the model says.

    The model is a dictionary step -> seed of the newest save.  Retention may only remove what the policy lets
    go; whatever is listed must load as it was saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.model: dict[int, int] = {}
        self.newest = -1
        self.pins: set[int] = set()
        self.seed = 0
        self.options: dict[str, Any] = {}
        self.store = exact_store(self.path)

    @initialize(keep_last=st.none() | st.integers(1, 3), max_chain=st.integers(0, 3))
    def open(self, keep_last: int | None, max_chain: int) -> None:
        self.options = {"keep_last": keep_last, "max_chain": max_chain}
        self.store = exact_store(self.path, **self.options)

    @rule(step=st.integers(0, 6))
    def save(self, step: int) -> None:
        self.seed += 1
        before = set(self.store.steps())
        self.store.save(step, tiny_state(step, self.seed))
        self.model[step], self.newest = self.seed, step
        gone = (before | {step}) - set(self.store.steps())
        assert not gone or self.options["keep_last"]
        self.forget(gone)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        assert is_same(self.store.load(step), tiny_state(step, self.model[step]))

    @precondition(lambda self: self.model)
    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = exact_store(self.path, **self.options)
        assert is_same(self.store.load(), tiny_state(self.newest, self.model[self.newest]))

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        assume(step != self.newest)
        self.store.delete(step)
        self.pins.discard(step)
        del self.model[step]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        self.store.pin(step)
        self.pins.add(step)

    @precondition(lambda self: self.model)
    @rule()
    def compact(self) -> None:
        before = set(self.store.steps())
        self.store.compact()
        self.forget(before - set(self.store.steps()))

    @rule()
    def crash_leftover(self) -> None:
        (self.path / f"step-000000001-seq-000001.dq.tmp-{self.seed:032x}").write_bytes(b"half")

    def forget(self, gone: set[int]) -> None:
        """What went must have been allowed to."""
        assert not gone & (self.pins | {self.newest})
        for step in gone:
            del self.model[step]

    @invariant()
    def what_is_listed_is_the_model_and_loads(self) -> None:
        fresh = exact_store(self.path)
        assert set(fresh.steps()) == set(self.model)
        for step, seed in self.model.items():
            assert is_same(fresh.load(step), tiny_state(step, seed))
        if self.model:
            newest = fresh.newest()
            assert newest is not None
            assert newest.step == self.newest

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.path)


def tiny_state(step: int, seed: int) -> dict[str, Any]:
    """A state that tells which save it is."""
    state = small_state(step, seed=seed)
    return {"model": {"w": state["model"]["layer0.weight"]}, "frozen": small_state(0)["frozen"], "step": step}


StoreMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreMachine = StoreMachine.TestCase
