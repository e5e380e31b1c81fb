"""Folders that the user names: whole when save_state returns."""

import shutil
import time

import pytest

from dynaquant_core.plugins.line import Line
from tests.integrations.accelerate.kit import EPOCH, EXACT, build, everything, train


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
