"""Folders that are none of ours, or damaged: one clear line each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dynaquant_core.errors import (
    CheckpointNotFoundError,
    ConfigError,
    CorruptFileError,
    DynaQuantError,
    NotAStoreError,
    StorageError,
    UnknownMethodError,
    VersionError,
)
from dynaquant_core.plugins import (
    MARKER,
    PluginOptions,
    describe,
    find_checkpoints,
    is_checkpoint,
    read_tree,
)
from dynaquant_core.plugins.marker import Marker
from tests.plugins.kit import checkpoint, exact_run, is_same, state


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Two checkpoints of one run."""
    root = tmp_path_factory.mktemp("plugin")
    run = exact_run()
    run.save(root / "1", 1, state(1))
    run.save(root / "2", 2, state(2))
    run.close()
    return root


@pytest.fixture
def folder(original, tmp_path):
    """A copy of the second, to be damaged."""
    return Path(shutil.copytree(original / "2", tmp_path / "2"))


def changed(folder, **values):
    data = json.loads((folder / MARKER).read_text())
    (folder / MARKER).write_text(json.dumps({**data, **values}))


def test_the_marker_says_whose_checkpoint_it_is(folder):
    data = json.loads((folder / MARKER).read_text())
    assert (data["format"], data["framework"], data["step"]) == (1, "none", 2)
    assert {"torch"} <= set(data["versions"])


def test_other_folders_are_no_checkpoints(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, reason in (
        ("empty", "no dynaquant.json"),
        ("file", "is a file"),
        ("nowhere", "does not exist"),
    ):
        assert not is_checkpoint(tmp_path / name)
        with pytest.raises(NotAStoreError, match=reason):
            read_tree(tmp_path / name)
        with pytest.raises(NotAStoreError, match=reason):
            exact_run().load(tmp_path / name)
    assert is_checkpoint(folder)
    assert is_checkpoint(str(folder))
    assert not is_checkpoint(3)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", "[" * 10000, '{"format": 1}', "\0" * 64],
)
def test_a_damaged_marker(folder, text):
    (folder / MARKER).write_text(text)
    assert is_checkpoint(folder)  # it is ours; what is wrong shows when it is read
    with pytest.raises(CorruptFileError, match="is damaged"):
        read_tree(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"step": -1},
        {"step": True},
        {"sequence": "1"},
        {"digest": 3},
        {"framework": None},
        {"versions": []},
        {"rest": {"name": "../rest.pt", "nbytes": 1, "checksum": ""}},
        {"rest": {"name": "..", "nbytes": 1, "checksum": ""}},
        {"rest": [1]},
    ],
)
def test_a_marker_with_wrong_values(folder, values):
    changed(folder, **values)
    with pytest.raises(CorruptFileError, match="is damaged"):
        Marker.read(folder)


def test_a_marker_of_a_newer_version(folder):
    changed(folder, format=2)
    with pytest.raises(VersionError, match="update dynaquant"):
        describe(folder)


def test_a_marker_that_names_another_checkpoint(folder):
    changed(folder, step=77, digest="0")
    with pytest.raises(CheckpointNotFoundError, match="step 77"):
        read_tree(folder)


def test_a_checkpoint_that_is_damaged_never_falls_back(folder):
    path = max(folder.glob("*.dq"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DynaQuantError):
        checkpoint(folder)


def test_a_file_of_foreign_objects_that_was_changed(folder):
    data = (folder / "rest.pt").read_bytes()
    (folder / "rest.pt").write_bytes(data + b"\0")
    with pytest.raises(CorruptFileError, match="not what was saved"):
        checkpoint(folder)
    (folder / "rest.pt").unlink()
    with pytest.raises(StorageError, match=r"rest\.pt"):
        checkpoint(folder)


def test_a_checkpoint_that_is_replaced_while_it_is_read(tmp_path, original):
    """The reader takes the new one instead of failing."""
    run = exact_run()
    run.save(tmp_path / "last", 1, state(1))
    run.wait()
    old = (tmp_path / "last" / MARKER).read_text()
    run.save(tmp_path / "last", 2, state(2))
    run.close()
    seen = []

    def action(marker):
        seen.append(marker.step)
        if len(seen) == 1:  # what the first look names is gone by now
            (tmp_path / "last" / MARKER).write_text(new)
            raise CheckpointNotFoundError("gone")
        return checkpoint(tmp_path / "last")

    from dynaquant_core.plugins.reading import on_marker

    new = (tmp_path / "last" / MARKER).read_text()
    (tmp_path / "last" / MARKER).write_text(old)
    assert is_same(on_marker(tmp_path / "last", action), state(2))
    assert seen == [1, 2]


def test_checkpoints_below_a_folder(original, tmp_path):
    root = tmp_path / "output"
    for name in ("epoch=1.ckpt", "deep/er/checkpoint_3/dynaquant", ".hidden"):
        shutil.copytree(original / "2", root / name)
    (root / "last.ckpt").symlink_to("epoch=1.ckpt")
    (root / "a.txt").write_text("x")
    (root / "best").symlink_to("best")  # of what cannot be looked at the others know nothing
    found = [str(path.relative_to(root)) for path in find_checkpoints(root)]
    assert found == ["deep/er/checkpoint_3/dynaquant", "epoch=1.ckpt"]
    assert find_checkpoints(root / "epoch=1.ckpt") == [root / "epoch=1.ckpt"]
    assert find_checkpoints(root / "a.txt") == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"threshold": -1}, ConfigError),
        ({"threshold": "1%"}, ConfigError),
        ({"evaluate": 3}, ConfigError),
        ({"mode": "best"}, ConfigError),
        ({"method": "nothing"}, UnknownMethodError),
        ({"method": {"name": "dynaquant", "coder": "x"}}, ConfigError),
        ({"moments": "4bit"}, ConfigError),
        ({"exact": 3}, ConfigError),
        ({"window": 0.5}, ConfigError),
        ({"window": -1}, ConfigError),
        ({"max_chain": -1}, ConfigError),
        ({"on_error": "ignore"}, ConfigError),
    ],
)
def test_bad_options(options, error):
    with pytest.raises(error, match=next(iter(options))):
        PluginOptions(**options)


def test_options_are_frozen():
    with pytest.raises(AttributeError):
        PluginOptions().threshold = 1
