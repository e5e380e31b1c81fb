"""The file that stands for a checkpoint: who can load it, from where, and what a crash leaves of it."""

import shutil

import pytest
import torch
from composer.core import State  # noqa: F401 - Composer is imported before anything is unpickled

from dynaquant_composer.folder import retire
from dynaquant_composer.pointer import folder_of, open_checkpoint, write_pointer
from dynaquant_core.cli.source import open_source
from dynaquant_core.errors import CheckpointNotFoundError, DynaQuantError
from tests.integrations.composer.kit import EXACT, bits, fit, names, never_shown, ours, python, trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the checkpoints of six batches, and the weights after them."""
    folder = tmp_path_factory.mktemp("saved")
    run = fit(ours(folder, **EXACT), duration="6ba")
    return folder, bits(run.state.model.state_dict())


@pytest.fixture
def copied(saved, tmp_path):
    """The same elsewhere, with the original out of reach."""
    shutil.copytree(saved[0], tmp_path / "copy", symlinks=True)
    return tmp_path / "copy", saved[1]


def test_a_trainer_without_us_loads_it(saved):
    folder, weights = saved
    run = trainer(load_path=str(folder / "latest-rank0.pt"), seed=5)
    assert int(run.state.timestamp.batch) == 6
    assert bits(run.state.model.state_dict()) == weights


def test_a_process_that_never_heard_of_us_loads_it(saved):
    code = (
        "import torch, composer, sys\n"
        f"tree = torch.load({str(saved[0] / 'latest-rank0.pt')!r}, weights_only=False)\n"
        "print(int(tree['state']['timestamp']['Timestamp']['batch']))\n"
    )
    said, errors = python("-c", code).communicate(timeout=120)
    assert said.split() == ["6"], errors


def test_it_moves_with_its_folder_and_not_alone(copied):
    folder, weights = copied
    run = trainer(load_path=str(folder / "ep0-ba6-rank0.pt"), seed=5)
    assert bits(run.state.model.state_dict()) == weights
    shutil.rmtree(folder / "ep0-ba6-rank0.pt.dynaquant")
    with pytest.raises(CheckpointNotFoundError, match="copy both together"):
        trainer(load_path=str(folder / "ep0-ba6-rank0.pt"))


def test_an_open_file_knows_where_it_lies_and_a_buffer_does_not(saved):
    path = saved[0] / "ep0-ba6-rank0.pt"
    with path.open("rb") as file:
        assert "state" in torch.load(file, weights_only=False)
        file.seek(0)
        import io

        with pytest.raises(CheckpointNotFoundError, match="load it by its path"):
            torch.load(io.BytesIO(file.read()), weights_only=False)
    with pytest.raises(CheckpointNotFoundError):
        open_checkpoint("nowhere")


def test_weights_only_names_what_to_trust(saved):
    with pytest.raises(Exception, match=r"dynaquant_composer\.pointer\.open_checkpoint"):
        torch.load(saved[0] / "latest-rank0.pt", weights_only=True)


def test_what_was_committed_and_not_shown_is_the_latest_after_a_crash(copied):
    folder, weights = copied
    never_shown(folder / "ep0-ba6-rank0.pt")
    link = folder / "latest-rank0.pt"
    link.unlink()
    link.symlink_to("ep0-ba3-rank0.pt")
    run = trainer(ours(folder, **EXACT), autoresume=True, seed=5)
    assert int(run.state.timestamp.batch) == 6
    assert bits(run.state.model.state_dict()) == weights
    assert link.readlink().name == "ep0-ba6-rank0.pt"


def test_a_rotation_that_died_in_between_brings_nothing_back(copied):
    folder, _ = copied
    retire(folder / "ep0-ba3-rank0.pt")
    run = trainer(ours(folder, **EXACT), autoresume=True, duration="9ba")
    assert int(run.state.timestamp.batch) == 6
    run.fit()
    assert "ep0-ba3-rank0.pt.dynaquant" not in names(folder)


def test_a_save_that_died_is_swept_away(copied):
    folder, _ = copied
    half = folder / "ep1-ba9-rank0.pt.dynaquant"
    half.mkdir()
    (half / ".dynaquant.pending").touch()
    run = trainer(ours(folder, **EXACT), autoresume=True, duration="7ba")
    assert int(run.state.timestamp.batch) == 6
    run.fit()
    assert not half.exists()


def test_a_pointer_is_replaced_whole(tmp_path):
    file = tmp_path / "a.pt"
    file.write_bytes(b"native")
    write_pointer(file)
    assert names(tmp_path) == ["a.pt"]
    assert file.stat().st_size < 2048
    assert folder_of(file) == tmp_path / "a.pt.dynaquant"


def test_the_command_line_takes_the_file_and_the_link(copied):
    folder, _ = copied
    (folder / "native.pt").write_bytes(b"x" * 5000)
    shutil.copytree(folder_of(folder / "ep0-ba3-rank0.pt"), folder_of(folder / "native.pt"))
    given = [folder / "ep0-ba3-rank0.pt", folder / "latest-rank0.pt"]
    assert [open_source(path).info().step for path in given] == [3, 6]
    with pytest.raises(DynaQuantError, match="is not a DynaQuant checkpoint"):
        open_source(folder / "native.pt")
