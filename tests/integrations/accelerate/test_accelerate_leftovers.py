"""What saves that died have left under automatic naming makes room; what is somebody else's stays."""

from pathlib import Path

import pytest

from dynaquant_accelerate import newest
from dynaquant_core.plugins import is_checkpoint
from tests.integrations.accelerate.kit import EPOCH, EXACT, build, everything, names, resume, train


def test_a_save_that_died_is_passed_over_and_makes_room(tmp_path):
    bench = train(build(tmp_path, options=EXACT), 2 * EPOCH, save_every=EPOCH)
    bench.ours.wait()
    (tmp_path / "checkpoints" / "checkpoint_1" / "dynaquant.json").unlink()  # as if it had died there
    assert newest(tmp_path / "checkpoints") == str(tmp_path / "checkpoints" / "checkpoint_0")
    again = resume(build(tmp_path, options=EXACT))
    assert again.done == EPOCH
    train(again, 2 * EPOCH, save_every=EPOCH).ours.wait()
    assert is_checkpoint(tmp_path / "checkpoints" / "checkpoint_1")
    assert everything(again) == everything(bench)


@pytest.mark.parametrize("left", [(), (".sign.part",)])
def test_a_save_that_died_before_it_wrote_makes_room(tmp_path, left):
    folder = tmp_path / "checkpoints" / "checkpoint_0"
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).write_bytes(b"PK")
    train(resume(build(tmp_path, options=EXACT)), EPOCH, save_every=EPOCH).ours.wait()
    assert is_checkpoint(folder)
    assert not set(left) & set(names(folder))


def test_a_save_that_died_in_a_hook_of_the_user_makes_room(tmp_path):
    def dies(_models, _weights, folder):
        (Path(folder) / "mine.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    bench = train(build(tmp_path, options=EXACT), EPOCH)
    bench.accelerator.register_save_state_pre_hook(dies)
    with pytest.raises(KeyboardInterrupt):
        bench.accelerator.save_state()
    train(resume(build(tmp_path, options=EXACT)), EPOCH, save_every=EPOCH).ours.wait()
    assert "mine.bin" not in names(tmp_path / "checkpoints" / "checkpoint_0")


def test_what_somebody_else_left_in_the_way_stays(tmp_path):
    theirs = tmp_path / "checkpoints" / "checkpoint_0" / "theirs.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    with pytest.raises(ValueError, match="already exists"):
        train(resume(build(tmp_path, options=EXACT)), EPOCH, save_every=EPOCH)
    assert theirs.read_text() == "mine"
