"""A folder that is renamed, replaced or removed before its save is in it: an error, not a new folder."""

from __future__ import annotations

import shutil
import threading

import pytest

from dynaquant_core.errors import SaveError
from dynaquant_core.plugins.line import Line
from tests.plugins.kit import checkpoint, exact_run, is_same, names_in, state


@pytest.fixture
def gate(monkeypatch):
    """Until it is set nothing is committed."""
    gate, put = threading.Event(), Line.put

    def put_behind(self, what, job, *ended):
        put(self, what, lambda: (gate.wait(60), job()), *ended)

    monkeypatch.setattr(Line, "put", put_behind)
    return gate


@pytest.mark.parametrize("how", ["renamed", "replaced", "removed"])
def test_what_lies_beside_the_checkpoint_is_never_parted_from_it(tmp_path, gate, how):
    run, folder = exact_run(), tmp_path / "1"
    folder.mkdir()
    (folder / "scheduler.bin").touch()  # the framework's, who made the folder
    run.save(folder, 1, state(1))
    shutil.rmtree(folder) if how == "removed" else folder.rename(tmp_path / "moved")
    if how == "replaced":
        folder.mkdir()
    gate.set()
    with pytest.raises(SaveError, match=r"is not the folder that was to be saved into.*wait\(\)"):
        run.wait()
    assert folder.exists() == (how == "replaced")
    assert not folder.exists() or not names_in(folder)
    run.save(tmp_path / "2", 2, state(2))
    run.close()
    assert is_same(checkpoint(tmp_path / "2"), state(2))
