"""Leaving and joining: native folders loaded with us, ours exported and loaded without us."""

import pytest

from dynaquant_accelerate import export, install
from dynaquant_core.errors import NotAStoreError, StateMismatchError, UnsafePathError
from dynaquant_core.plugins import read_tree
from tests.integrations.accelerate.kit import EPOCH, EXACT, build, everything, names, resume, train


@pytest.fixture
def uninterrupted(tmp_path):
    return everything(train(build(tmp_path / "whole", ours=False), 3 * EPOCH))


def test_a_native_checkpoint_goes_on_with_us(tmp_path, uninterrupted):
    plain = train(build(tmp_path, ours=False), 2 * EPOCH, save_every=EPOCH)
    joined = resume(build(tmp_path, options=EXACT))
    assert joined.done == 2 * EPOCH
    assert everything(joined) == everything(plain)
    train(joined, 3 * EPOCH, save_every=EPOCH).ours.wait()
    assert everything(joined) == uninterrupted
    assert everything(resume(build(tmp_path, options=EXACT))) == uninterrupted


def test_a_checkpoint_of_ours_goes_on_without_us(tmp_path, uninterrupted):
    ours = train(build(tmp_path, options=EXACT), 2 * EPOCH, save_every=EPOCH)
    ours.ours.wait()
    export(None, tmp_path / "native", tmp_path / "checkpoints" / "checkpoint_1")
    assert names(tmp_path / "native") == [
        "optimizer.bin",
        "pytorch_model.bin",
        "random_states_0.pkl",
        "scheduler.bin",
    ]
    plain = build(tmp_path / "other", ours=False)
    plain.accelerator.load_state(str(tmp_path / "native"))
    plain.done = 2 * EPOCH
    assert everything(plain) == everything(ours)
    assert everything(train(plain, 3 * EPOCH)) == uninterrupted


def test_what_cannot_be_exported(tmp_path):
    bench = train(build(tmp_path, options=EXACT), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    source = tmp_path / "checkpoints" / "checkpoint_0"
    (tmp_path / "there").mkdir()
    with pytest.raises(UnsafePathError, match="exists already"):
        export(None, tmp_path / "there", source)
    with pytest.raises(NotAStoreError, match="no DynaQuant checkpoint of Accelerate"):
        export(None, tmp_path / "new", tmp_path)
    with pytest.raises(StateMismatchError, match="--to pt"):
        export({"weights": 1}, tmp_path / "new")
    export(read_tree(source), tmp_path / "new")
    assert names(tmp_path / "new") == ["optimizer.bin", "pytorch_model.bin"]


def test_a_native_folder_that_is_saved_over_leaves_no_stale_weights(tmp_path):
    bench = build(tmp_path, ours=False)
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    train(bench, EPOCH)
    bench.accelerator.save_state(str(tmp_path / "same"))
    ours = install(bench.accelerator, **EXACT)
    train(bench, 2 * EPOCH)
    bench.accelerator.save_state(str(tmp_path / "same"))
    ours.wait()
    assert "model.safetensors" not in names(tmp_path / "same")
