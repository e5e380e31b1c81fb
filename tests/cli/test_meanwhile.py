"""Commands that look at a store, or at a framework's folders, while a run saves into them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dynaquant_core.cli.folders import FolderSource, OutputSource
from dynaquant_core.cli.stored import StoreSource
from dynaquant_core.plugins import PluginOptions, PluginRun, checking, find_checkpoints
from dynaquant_core.plugins.marker import MARKER
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.store.catalogue import Catalogue, Entry
from dynaquant_core.store.chain import Chain
from dynaquant_core.store.meta import BaseLink
from dynaquant_core.store.trail import open_link
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


def weights_of(step: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((32, 32), float(step))}, "step": step}


@pytest.fixture
def run() -> Iterator[PluginRun]:
    run = PluginRun(PluginOptions(exact="*"), framework="none")
    yield run
    run.close()


@pytest.fixture
def output(run: PluginRun, tmp_path: Path) -> Path:
    """Three checkpoints of a framework's run."""
    for step in (10, 20, 30):
        run.save(tmp_path / "output" / f"checkpoint-{step}", step, weights_of(step))
    run.wait()
    return tmp_path / "output"


@pytest.mark.parametrize("left", ["nothing", "the marker"])
@pytest.mark.parametrize("moment", ["before its files are listed", "once they are open"])
def test_verify_says_nothing_of_what_a_framework_removes_meanwhile(
    output: Path, monkeypatch: pytest.MonkeyPatch, moment: str, left: str
) -> None:
    going = output / "checkpoint-20"

    def remove() -> None:
        for file in going.glob("*") if going.exists() else ():
            if left == "nothing" or file.name != MARKER:
                file.unlink()

    @contextmanager
    def late(folder: Path, link: BaseLink) -> Iterator[Chain]:
        if moment == "before its files are listed":
            remove()
        with open_link(folder, link) as chain:
            remove()
            yield chain

    monkeypatch.setattr(checking, "open_link", late)
    monkeypatch.setattr(time, "sleep", lambda _: shutil.rmtree(going, ignore_errors=True))  # it goes on there
    source = OutputSource(output, find_checkpoints(output))
    assert source.verify(deep=False) == []


def test_verify_of_a_folder_that_is_named_says_that_it_went(output: Path) -> None:
    source = FolderSource(output / "checkpoint-10")
    shutil.rmtree(output / "checkpoint-10")
    (problem,) = source.verify(deep=False)
    assert "checkpoint-10" in problem


@pytest.mark.parametrize("words", [("export", "-o", "out.pt"), ("show", "--tensors"), ("log",)])
@pytest.mark.parametrize("when", ["listed", "chosen"])
def test_an_output_folder_is_read_while_its_checkpoints_are_rotated(
    shell: Shell,
    output: Path,
    run: PluginRun,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    when: str,
) -> None:
    """save_total_limit=1: the next checkpoint comes, and all before it go."""
    monkeypatch.chdir(output.parent)
    begin, info = OutputSource.__init__, OutputSource.info

    def rotate() -> None:
        if not (output / "checkpoint-40").exists():
            run.save(output / "checkpoint-40", 40, weights_of(40))
            run.wait()
            for step in (10, 20, 30):
                run.remove(output / f"checkpoint-{step}")

    def late(self: OutputSource, path: Path, folders: Sequence[Path]) -> None:
        rotate()
        begin(self, path, folders)

    def later(self: OutputSource, step: int | None = None) -> CheckpointInfo:
        found = info(self, step)
        rotate()
        return found

    if when == "listed":
        monkeypatch.setattr(OutputSource, "__init__", late)
    else:
        monkeypatch.setattr(OutputSource, "info", later)
    outcome = shell(words[0], output, *words[1:])
    assert (outcome.status, "cannot be read" in outcome.err) == (0, False)
    assert "40" in outcome.out or (words == ("log",) and when == "chosen")


@pytest.mark.parametrize("named", [False, True])
def test_what_is_exported_is_the_step_that_is_told(
    shell: Shell, output: Path, run: PluginRun, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A folder called "last" is another checkpoint with every save."""
    run.save(output / "last", 31, weights_of(31))
    run.wait()
    source = FolderSource if named else OutputSource
    info = source.info

    def late(self: Any, step: int | None = None) -> CheckpointInfo:
        found: CheckpointInfo = info(self, step)
        if found.step == 31:
            run.save(output / "last", 40, weights_of(40))
            run.wait()
        return found

    monkeypatch.setattr(source, "info", late)
    out = output / "out.pt"
    outcome = shell("export", output / "last" if named else output, "-o", out)
    assert (outcome.status, "step 40" in outcome.out) == (0, True)
    assert torch.load(out)["step"] == 40
