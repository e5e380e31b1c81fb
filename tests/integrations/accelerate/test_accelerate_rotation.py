"""Which folders of automatic naming go, and which one is the newest."""

import pytest
import torch

from dynaquant_accelerate import newest
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import read_tree
from tests.integrations.accelerate.kit import EPOCH, EXACT, bits, build, names, train


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
