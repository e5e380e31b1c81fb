"""Commands that look at a store while a run saves into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dynaquant_core.cli.stored import StoreSource
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.store.catalogue import Catalogue, Entry
from tests.cli.words import Shell, training_state


def test_export_of_the_newest_goes_on_where_a_run_retires_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointStore(tmp_path / "store", keep_last=1, max_chain=0)
    writer.save(1, training_state())
    info = StoreSource.info

    def late(self: StoreSource, step: int | None = None) -> CheckpointInfo:
        found = info(self, step)
        if writer.steps() == [1]:
            writer.save(2, training_state(2))
        return found

    monkeypatch.setattr(StoreSource, "info", late)
    told = shell("export", tmp_path / "store", "-o", tmp_path / "a.pt")
    assert told.status == 0
    assert "step 2" in told.out


@pytest.mark.parametrize("beside", [False, True])
def test_a_store_of_one_checkpoint_is_never_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Between a reader's list of names and its look at them a run may commit the next and retire those."""
    writer = CheckpointStore(tmp_path / "store", keep_last=1, max_chain=0)
    writer.save(1, training_state())
    if beside:
        (tmp_path / "store" / "events.log").write_text("of the run")
    entry, saving = Catalogue._entry, []

    def late(self: Catalogue, name: str) -> Entry:
        if not saving:
            saving.append(True)
            writer.save(writer.steps()[-1] + 1, training_state())
        return entry(self, name)

    monkeypatch.setattr(Catalogue, "_entry", late)
    looks: list[Callable[[CheckpointStore], object]] = [
        lambda store: store.newest() is not None,
        lambda store: store.steps(),
        lambda store: StoreSource(store.path).infos(),
        lambda store: store.verify() == [],
        lambda store: store.load()["note"],
    ]
    for look in looks:
        saving.clear()
        assert look(CheckpointStore(tmp_path / "store"))


def test_tensors_of_a_checkpoint_that_came_meanwhile(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointStore(tmp_path / "store")
    writer.save(1, training_state())
    begin = StoreSource.__init__

    def late(self: StoreSource, folder: Path) -> None:
        begin(self, folder)
        writer.save(2, training_state(2))

    monkeypatch.setattr(StoreSource, "__init__", late)
    told = shell("show", tmp_path / "store", "--tensors", "--json").json()
    assert told["step"] == 2
