"""Checkpoints that each stand alone in a folder, and what becomes of those below them."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch

from dynaquant_core.errors import (
    CheckpointNotFoundError,
    CorruptFileError,
    MissingBaseError,
    SaveError,
    StorageError,
)
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.catalogue import read_entry
from dynaquant_core.store.disk import file_identity
from dynaquant_core.store.kept import KeptFile
from dynaquant_core.store.trail import Trail, read_link
from tests.store.kit import is_same, small_state

OTHER_FILE_SYSTEM = Path("/dev/shm")


def exact_trail(**options):
    return Trail(method="exact", moments="exact", **options)


def saved(trail, folder, step, state=None):
    """Saves into a new folder; returns the info and what to find it by."""
    folder.mkdir()
    saving = trail.begin(step, small_state(step) if state is None else state)
    return trail.commit(saving.seal(saving.draft()), folder)


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


@pytest.fixture
def elsewhere(tmp_path):
    """A folder on another file system, where no link can lead to."""
    if not OTHER_FILE_SYSTEM.is_dir() or OTHER_FILE_SYSTEM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip(f"{OTHER_FILE_SYSTEM} is not another file system than the temporary folder's")
    folder = OTHER_FILE_SYSTEM / f"dynaquant-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def test_every_folder_stands_alone(tmp_path):
    """Whatever is removed, what is left can be read, bit for bit."""
    trail, links = exact_trail(max_chain=3), {}
    for step in range(1, 7):
        info, links[step] = saved(trail, tmp_path / str(step), step)
        assert info.kind == ("key" if step in (1, 5) else "delta")
    for kept, link in links.items():
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / str(kept), copy)
        shutil.move(tmp_path / str(kept), tmp_path / "alone")
        assert is_same(read_link(tmp_path / "alone", link), small_state(kept))
        assert is_same(read_link(copy, link), small_state(kept))
        shutil.rmtree(tmp_path / "alone")
        shutil.rmtree(copy)


def test_elsewhere_only_copies_of_weights_by_name_and_shape_are_compressed(tmp_path):
    drawn = iter(torch.randn(9, 64, 32, generator=torch.Generator().manual_seed(0)))
    head = next(drawn)
    state = {
        "tied": head,  # the model's own, met here first
        "model": {"net.weight": next(drawn), "head": head},
        "average": {"module.net.weight": next(drawn)},
        "queue": next(drawn),
        "other": {"weight": next(drawn), "net.weight": next(drawn)[:32]},
        "mine": {"state": {0: {"exp_avg": next(drawn)}}, "param_groups": [{"params": [0]}]},
        "optimizers": {"state": {0: {"exp_avg": next(drawn)}}, "param_groups": [{"params": [0]}]},
    }
    trail = Trail()
    trail.compress_only(["model", "optimizers"])
    _, link = saved(trail, tmp_path / "1", 1, state)
    found = read_link(tmp_path / "1", link)
    for name in ("queue", "other", "mine"):
        assert is_same(found[name], state[name])
    compressed = [
        (found["tied"], head),
        (found["model"]["net.weight"], state["model"]["net.weight"]),
        (found["average"]["module.net.weight"], state["average"]["module.net.weight"]),
        (found["optimizers"]["state"][0]["exp_avg"], state["optimizers"]["state"][0]["exp_avg"]),
    ]
    assert not any(torch.equal(mine, theirs) for mine, theirs in compressed)


def test_what_is_below_takes_no_space(tmp_path):
    trail = exact_trail()
    for step in (1, 2, 3):
        saved(trail, tmp_path / str(step), step)
    below, above = inodes(tmp_path / "2"), inodes(tmp_path / "3")
    assert below.items() < above.items()


@pytest.mark.parametrize("gone", list(itertools.product([False, True], repeat=3)))
def test_folders_may_go_while_the_run_goes_on(tmp_path, gone):
    """Before a save, between its beginning and its commit, and after it."""
    trail = exact_trail()
    first = tmp_path / "1"
    saved(trail, first, 1)
    if gone[0]:
        shutil.rmtree(first)
    saving = trail.begin(2, small_state(2))
    if gone[1]:
        shutil.rmtree(first, ignore_errors=True)
    second = tmp_path / "2"
    second.mkdir()
    _, link = trail.commit(saving.seal(saving.draft()), second)
    if gone[2]:
        shutil.rmtree(first, ignore_errors=True)
    assert is_same(read_link(second, link), small_state(2))
    info, link = saved(trail, tmp_path / "3", 3)
    shutil.rmtree(second)
    assert info.kind == "delta"
    assert is_same(read_link(tmp_path / "3", link), small_state(3))


def test_a_base_whose_every_name_is_gone_gives_a_key(tmp_path):
    """A key is smaller than a delta with a copy of what it builds on."""
    trail = exact_trail()
    saved(trail, tmp_path / "1", 1)
    shutil.rmtree(tmp_path / "1")
    info, _ = saved(trail, tmp_path / "2", 2)
    assert info.kind == "key"
    assert len(list((tmp_path / "2").iterdir())) == 1


def test_a_renamed_folder_is_linked_from(tmp_path):
    trail = exact_trail()
    saved(trail, tmp_path / "1.tmp", 1)
    (tmp_path / "1.tmp").rename(tmp_path / "1")
    info, _ = saved(trail, tmp_path / "2", 2)
    assert info.kind == "delta"
    assert inodes(tmp_path / "1").items() < inodes(tmp_path / "2").items()


def test_another_file_system_gets_copies(tmp_path, elsewhere):
    trail = exact_trail()
    _, first = saved(trail, tmp_path / "1", 1)
    info, second = saved(trail, elsewhere / "2", 2)
    assert info.kind == "delta"
    shutil.rmtree(tmp_path / "1")
    assert is_same(read_link(elsewhere / "2", second), small_state(2))
    info, third = saved(trail, elsewhere / "3", 3)  # from here on links serve again
    assert info.kind == "delta"
    assert inodes(elsewhere / "2").items() < inodes(elsewhere / "3").items()
    assert is_same(read_link(elsewhere / "3", third), small_state(3))
    assert first.digest != second.digest


def test_a_file_system_without_links_gets_copies_once_and_then_keys(tmp_path, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    trail = exact_trail()
    saved(trail, tmp_path / "1", 1)
    info, link = saved(trail, tmp_path / "2", 2)
    assert info.kind == "delta"
    assert len(list((tmp_path / "2").iterdir())) == 2
    assert "no hard links" in caplog.text
    shutil.rmtree(tmp_path / "1")
    assert is_same(read_link(tmp_path / "2", link), small_state(2))
    assert saved(trail, tmp_path / "3", 3)[0].kind == "key"


def test_a_name_that_is_taken_is_left_alone(tmp_path):
    """Two runs that both began at step 1 meet in one folder; names only hint, what counts is inside."""
    ours, theirs = exact_trail(), exact_trail()
    folder = tmp_path / "last"
    _, before = saved(theirs, folder, 1, small_state(1, seed=9))
    saved(ours, tmp_path / "1", 1)
    saving = ours.begin(2, small_state(2))
    _, after = ours.commit(saving.seal(saving.draft()), folder)
    assert is_same(read_link(folder, before), small_state(1, seed=9))
    assert is_same(read_link(folder, after), small_state(2))


def test_a_loaded_checkpoint_is_the_next_base(tmp_path):
    _, link = saved(exact_trail(), tmp_path / "1", 1)
    trail = exact_trail()
    assert is_same(trail.load(tmp_path / "1", link), small_state(1))
    info, _ = saved(trail, tmp_path / "2", 2)
    assert (info.kind, info.base_step, info.sequence) == ("delta", 1, 2)


def test_a_base_that_somebody_wrote_to_is_not_built_on(tmp_path, caplog):
    trail = exact_trail()
    _, link = saved(trail, tmp_path / "1", 1)
    path = next((tmp_path / "1").iterdir())
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\0\1\2\3")
    assert saved(trail, tmp_path / "2", 2)[0].kind == "key"
    assert "was changed" in caplog.text
    with pytest.raises(CorruptFileError):
        read_link(tmp_path / "1", link)


def test_what_changes_beside_the_weights_costs_no_key(tmp_path):
    """Frameworks keep lists and names that differ at every save."""
    weights = torch.randn(64, 64)
    trail, states = Trail(exact=("kept",)), {}
    for step in (1, 2, 3, 4):
        weights += 0.001 * torch.randn(64, 64)
        best = {f"epoch-{step}.ckpt": torch.tensor(float(step))} if step != 3 else {}
        states[step] = {"model": {"weight": weights.clone()}, "kept": torch.ones(3), "best": best}
        states[step]["history"] = [0.5] * (100 * step)
        info, link = saved(trail, tmp_path / str(step), step, states[step])
        assert info.kind == ("key" if step == 1 else "delta")
        found = read_link(tmp_path / str(step), link)
        assert is_same({**found, "model": None}, {**states[step], "model": None})
    fresh = Trail(exact=("kept",))
    fresh.load(tmp_path / "4", link)
    assert saved(fresh, tmp_path / "5", 5, states[4])[0].kind == "delta"
    assert is_same(read_link(tmp_path / "4", link, names=["best", "kept"])["best"], best)


def test_other_weights_are_a_key(tmp_path):
    trail = exact_trail()
    saved(trail, tmp_path / "1", 1, {"a": torch.ones(32, 32)})
    assert saved(trail, tmp_path / "2", 2, {"b": torch.ones(32, 32)})[0].kind == "key"


def test_a_folder_is_a_store(tmp_path):
    """Every command works on it, and what a store writes anew is found by the run."""
    trail = exact_trail()
    for step in (1, 2, 3):
        _, link = saved(trail, tmp_path / str(step), step)
    with CheckpointStore(tmp_path / "3", max_chain=0) as store:
        assert store.steps() == [1, 2, 3]
        assert is_same(store.load(), small_state(3))
        store.compact()
        assert store.info(3).kind == "key"
    assert is_same(read_link(tmp_path / "3", link), small_state(3))


def test_a_checkpoint_that_is_not_there(tmp_path):
    trail = exact_trail()
    saved(trail, tmp_path / "1", 1)
    _, link = saved(trail, tmp_path / "2", 2)
    with pytest.raises(CheckpointNotFoundError, match="step 2"):
        read_link(tmp_path / "1", link)
    for path in (tmp_path / "2").glob("step-000000001*"):
        path.unlink()
    with pytest.raises(MissingBaseError, match="step 1"):
        read_link(tmp_path / "2", link)


def test_a_commit_after_another_load_is_refused(tmp_path):
    trail = exact_trail()
    _, first = saved(trail, tmp_path / "1", 1)
    saving = trail.begin(2, small_state(2))
    sealed = saving.seal(saving.draft())
    saved(trail, tmp_path / "3", 3)
    (tmp_path / "2").mkdir()
    with pytest.raises(MissingBaseError, match="save again"):
        trail.commit(sealed, tmp_path / "2")
    with pytest.raises(SaveError, match="without a place"):
        sealed.write()
    trail.load(tmp_path / "1", first)
    assert is_same(read_link(tmp_path / "1", first), small_state(1))


def test_a_follower_drafts_what_the_writer_drafts(tmp_path):
    """A rank that writes nothing evaluates the writer's own candidates."""
    torch.manual_seed(0)
    weights = torch.randn(100, 80)
    writer, follower = Trail(), Trail()
    for step in range(1, 5):
        weights += 0.01 * torch.randn(100, 80)
        state = {"model": {"weight": weights}, "rank": torch.ones(step)}
        drafts = []
        for trail in (writer, follower):
            saving = trail.begin(step, state)
            drafts.append((saving, saving.draft()))
        (saving, draft), (theirs, copy) = drafts
        assert draft.is_key == copy.is_key == (step == 1)
        assert is_same(dict(draft.decoded), dict(copy.decoded))
        follower.follow(theirs, copy)
        (tmp_path / str(step)).mkdir()
        writer.commit(saving.seal(draft), tmp_path / str(step))


def test_a_file_that_takes_anothers_place_is_not_taken_for_it(tmp_path):
    trail = exact_trail()
    saved(trail, tmp_path / "1", 1)
    path = next((tmp_path / "1").iterdir())
    entry, identity = read_entry(path), file_identity(path)
    assert KeptFile.of(entry, identity).intact
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="read it again"):
        KeptFile.of(entry, identity)


def test_a_kept_file_outlives_its_names(tmp_path):
    trail = exact_trail()
    saved(trail, tmp_path / "1", 1)
    path = next((tmp_path / "1").iterdir())
    kept = KeptFile(path, "any")
    path.unlink()
    assert not kept.named
    placed = kept.put(tmp_path)
    assert (placed.linked, placed.path.name) == (False, path.name)
    with pytest.raises(StorageError):
        KeptFile(path, "any")
    with pytest.raises(StorageError):
        placed.put(tmp_path / "nowhere")


def test_parts_that_stand_alone_survive_rebasing(tmp_path):
    """A store whose states gain and lose tensors beside the weights, thinned out and compacted."""
    torch.manual_seed(0)
    weights, states = torch.randn(64, 64), {}
    with CheckpointStore(tmp_path / "store", max_chain=8) as store:
        for step in range(1, 7):
            weights += 0.001 * torch.randn(64, 64)
            extra = {f"tensor-{step // 2}": torch.full((8, 8), step)} if step != 5 else {}
            store.save(step, {"model": {"weight": weights.clone()}, "kept": {3: torch.arange(9)}, **extra})
        assert [store.info(step).kind for step in store.steps()] == ["key"] + ["delta"] * 5
        states = {step: store.load(step) for step in store.steps()}
        assert list(states[4]) == ["model", "kept", "tensor-2"]
        for gone in (1, 3):
            store.delete(gone)
            assert all(is_same(store.load(step), states[step]) for step in store.steps())
    with CheckpointStore(tmp_path / "store", max_chain=1) as store:
        store.compact()
        assert all(is_same(store.load(step), states[step]) for step in (2, 4, 5, 6))
        assert store.verify(deep=True) == []
        assert {store.info(step).kind for step in store.steps()} == {"key", "delta"}


@pytest.mark.parametrize("method", ["lattice", "dynaquant", "cnr"])
def test_weights_that_come_after_a_checkpoint_of_none_are_saved(tmp_path: Path, method: str) -> None:
    """By the rank that writes and by one that follows it."""
    for follows in (False, True):
        trail = Trail(method=method)
        saving = trail.begin(1, {"count": torch.tensor(1)})
        if follows:
            trail.follow(saving, saving.draft())
        else:
            trail.commit(saving.seal(saving.draft()), tmp_path)
        assert trail.begin(2, {"w": torch.randn(64, 64)}).draft().is_key
