"""Which folders of automatic naming go, and which one is the newest."""

from pathlib import Path

import pytest
import torch

from dynaquant_accelerate import newest
from dynaquant_core.errors import ConfigError, StorageError
from dynaquant_core.plugins import read_tree
from tests.integrations.accelerate.kit import EPOCH, EXACT, bits, build, everything, names, resume, train


def test_the_last_whole_checkpoint_stays_where_the_next_save_fails(tmp_path):
    bench = build(tmp_path, total_limit=1, options=EXACT | {"on_error": "warn"})
    train(bench, EPOCH, save_every=EPOCH).ours.wait()
    want = bits(bench.model.state_dict())
    bench.optimizer.param_groups[0]["odd"] = lambda: 0  # cannot be pickled
    train(bench, 2 * EPOCH, save_every=EPOCH).ours.wait()
    kept = newest(tmp_path / "checkpoints")
    assert bits(read_tree(kept)["model"]) == want
    del bench.optimizer.param_groups[0]["odd"]
    train(bench, 3 * EPOCH, save_every=EPOCH).ours.wait()
    assert names(tmp_path / "checkpoints") == ["checkpoint_2"]


def test_files_beside_the_checkpoints_are_nobodys_to_remove(tmp_path):
    notes = tmp_path / "checkpoints" / "notes_1.txt"
    notes.parent.mkdir()
    notes.write_text("learning rate 1e-2")
    train(build(tmp_path, total_limit=1, options=EXACT), 3 * EPOCH, save_every=EPOCH).ours.wait()
    assert names(notes.parent) == ["checkpoint_2", "notes_1.txt"]


def test_a_folder_with_a_remark_in_its_name_is_ordered_as_accelerate_orders_it(tmp_path):
    bench = train(build(tmp_path, options=EXACT), 2 * EPOCH, save_every=EPOCH)
    bench.ours.wait()
    folder = tmp_path / "checkpoints"
    (folder / "checkpoint_0").rename(folder / "checkpoint_0_accuracy_93")
    bench.accelerator.load_state()
    assert bench.ours.step == 2 * EPOCH
    assert newest(folder) == str(folder / "checkpoint_1")


@pytest.mark.parametrize("how", ["relative", "absolute", "dotted", "behind a link", "a link"])
def test_after_an_older_checkpoint_the_numbers_go_on_after_the_newest(tmp_path, monkeypatch, how):
    """Whatever way the script calls the folder; those that came after the one loaded stay."""
    monkeypatch.chdir(tmp_path)
    bench = train(build("run", options=EXACT), 3 * EPOCH, save_every=EPOCH)
    bench.ours.wait()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "run" / "checkpoints" / "checkpoint_1")
    (tmp_path / "run" / "checkpoints" / "best_2024").mkdir()
    folder = {"absolute": tmp_path / "run", "behind a link": "link"}.get(how, "run")
    again = build("./run" if how == "dotted" else "run", options=EXACT)
    path = "latest" if how == "a link" else f"{folder}/checkpoints/checkpoint_1"
    resume(again, path + ("/" if how == "dotted" else ""))
    train(again, 3 * EPOCH, save_every=EPOCH).ours.wait()
    assert everything(again) == everything(bench)
    assert names(tmp_path / "run" / "checkpoints") == ["best_2024", *(f"checkpoint_{at}" for at in range(4))]
    assert newest("run/checkpoints") == "run/checkpoints/checkpoint_3"


def test_no_folder_is_guessed_where_accelerate_names_none(tmp_path):
    bench = train(build(tmp_path, options=EXACT), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    with torch.no_grad():
        bench.model.head.weight.zero_()
    before = bits(bench.model.state_dict())
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    with pytest.raises(ConfigError, match="give the folder"):
        bench.accelerator.load_state()
    assert bits(bench.model.state_dict()) == before


def test_a_folder_behind_a_link_is_saved_into_again_and_again(tmp_path):
    (tmp_path / "scratch").mkdir()
    latest = tmp_path / "latest"
    latest.symlink_to(tmp_path / "scratch")
    bench = build(tmp_path, options=EXACT)
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    for until in (EPOCH, 2 * EPOCH):
        train(bench, until).accelerator.save_state(str(latest))
    bench.ours.wait()
    assert latest.is_symlink()
    again = build(tmp_path, seed=3, options=EXACT)
    again.accelerator.load_state(str(latest))
    assert bits(again.model.state_dict()) == bits(bench.model.state_dict())
    assert bits(again.scheduler.state_dict()) == bits(bench.scheduler.state_dict())


@pytest.mark.parametrize("name", ["optimizer.bin", "random_states_0.pkl"])
def test_a_native_file_that_cannot_be_written_is_one_line_or_a_warning(tmp_path, caplog, name):
    def life(folder, on_error):
        bench = build(folder, options=EXACT | {"on_error": on_error})
        hook = bench.accelerator.register_save_state_pre_hook(lambda *given: Path(given[2], name).mkdir())
        return bench, hook

    bench, _ = life(tmp_path / "raise", "raise")
    with pytest.raises(StorageError, match="step 4 cannot be written"):
        train(bench, EPOCH, save_every=EPOCH)
    bench, hook = life(tmp_path / "warn", "warn")
    train(bench, EPOCH, save_every=EPOCH)
    assert "step 4 cannot be written" in caplog.text
    hook.remove()
    train(bench, 2 * EPOCH, save_every=EPOCH).ours.wait()
    assert names(tmp_path / "warn" / "checkpoints") == ["checkpoint_0"]
    assert bench.ours.newest() is not None
