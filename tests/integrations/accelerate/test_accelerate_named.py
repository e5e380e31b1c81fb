"""Folders that the user names: whole when save_state returns, and of one save when they are loaded."""

import shutil
import time

import pytest

from dynaquant_accelerate import export, newest
from dynaquant_core.errors import NotAStoreError, SaveError
from dynaquant_core.plugins.line import Line
from tests.full_disk import files_of_at_most
from tests.integrations.accelerate.kit import EPOCH, EXACT, bits, build, everything, names, train


@pytest.fixture
def slow(monkeypatch):
    """What happens in the background begins late."""
    put = Line.put

    def put_late(self, what, job, *ended):
        put(self, what, lambda: (time.sleep(0.3), job()), *ended)

    monkeypatch.setattr(Line, "put", put_late)


def named(folder, *, seed=0, **options):
    """A training whose script names its folders itself."""
    bench = build(folder, seed=seed, options=EXACT | options)
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    return bench


@pytest.mark.parametrize("keep", [shutil.move, shutil.copytree])
def test_a_folder_may_be_renamed_or_copied_as_soon_as_it_is_saved(tmp_path, slow, keep):
    bench, were = named(tmp_path), []
    for number in (1, 2):
        train(bench, number * EPOCH).accelerator.save_state(str(tmp_path / "tmp"))
        keep(tmp_path / "tmp", tmp_path / f"kept-{number}")
        were.append(everything(bench))
    for number, want in enumerate(were, 1):
        again = named(tmp_path, seed=7)
        again.accelerator.load_state(str(tmp_path / f"kept-{number}"))
        again.done = again.ours.step
        assert everything(again) == want


def test_a_save_over_a_checkpoint_that_is_never_finished_is_told_of_when_it_is_loaded(tmp_path, caplog):
    bench, latest = train(named(tmp_path), EPOCH), str(tmp_path / "latest-1")
    bench.accelerator.save_state(latest)
    want = bits(bench.model.state_dict())
    train(bench, 2 * EPOCH)
    with files_of_at_most(16_000), pytest.raises(SaveError):  # enough for Accelerate's own files
        bench.accelerator.save_state(latest)
    again = named(tmp_path, seed=7)
    before = everything(again)
    with pytest.raises(NotAStoreError, match=r"of step 4 .* of step 8.*export\(None") as caught:
        again.accelerator.load_state(latest)
    assert everything(again) == before
    assert newest(tmp_path) is None
    assert "passed over: in" in caplog.text
    export(None, tmp_path / "native", latest)
    assert str(caught.value).split(":")[0] in caplog.text
    plain = build(tmp_path, ours=False, seed=7)
    plain.accelerator.load_state(str(tmp_path / "native"))
    assert bits(plain.model.state_dict()) == want
    assert bits(plain.scheduler.state_dict()) == bits(bench.scheduler.state_dict())
    bench.accelerator.save_state(latest)
    again.accelerator.load_state(latest)
    assert bits(again.model.state_dict()) == bits(bench.model.state_dict())
    assert not [name for name in names(latest) if "pending" in name]
