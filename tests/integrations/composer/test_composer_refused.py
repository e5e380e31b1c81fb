"""What the system refuses where a checkpoint is to appear or to go is our error, and ``on_error``'s."""

import pytest

from dynaquant_composer.pointer import folder_of
from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import is_checkpoint
from tests.integrations.composer.kit import EXACT, fit, names, ours, trainer


def test_a_link_that_cannot_be_moved(tmp_path, caplog):
    (tmp_path / "latest-rank0.pt").mkdir()
    said = r"Cannot link .*latest-rank0\.pt"
    with pytest.raises(DynaQuantError, match=said):
        fit(ours(tmp_path, **EXACT), duration="4ba")
    run = fit(ours(tmp_path, on_error="warn", overwrite=True, **EXACT), duration="6ba")
    assert int(run.state.timestamp.batch) == 6
    assert "latest-rank0.pt" in caplog.text
    assert is_checkpoint(folder_of(tmp_path / "ep0-ba6-rank0.pt"))
    assert not [name for name in names(tmp_path) if ".tmp-" in name]


def test_a_file_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "ep0-ba3-rank0.pt" / "mine").mkdir(parents=True)
    with pytest.raises(DynaQuantError, match=r"Cannot write .*ep0-ba3-rank0\.pt"):
        fit(ours(tmp_path, overwrite=True, **EXACT), duration="4ba")
    fit(ours(tmp_path, on_error="warn", overwrite=True, **EXACT), duration="6ba")
    assert "ep0-ba3-rank0.pt" in caplog.text
    assert not [name for name in names(tmp_path) if ".tmp-" in name]
    (tmp_path / "ep0-ba3-rank0.pt" / "mine").rmdir()
    assert int(trainer(ours(tmp_path, **EXACT), autoresume=True).state.timestamp.batch) == 6


def test_a_file_that_cannot_be_removed(tmp_path, caplog):
    callback = ours(tmp_path, on_error="warn", num_checkpoints_to_keep=1, **EXACT)
    run = fit(callback, duration="3ba")
    (tmp_path / "ep0-ba3-rank0.pt").unlink()
    (tmp_path / "ep0-ba3-rank0.pt" / "mine").mkdir(parents=True)
    run.fit(duration="6ba")
    assert int(run.state.timestamp.batch) == 9
    assert "Cannot remove" in caplog.text
    assert "ep1-ba9-rank0.pt" in names(tmp_path)
