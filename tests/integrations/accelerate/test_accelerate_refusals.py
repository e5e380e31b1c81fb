"""Bad input ends in one clear line."""

import json
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import fully_shard

from dynaquant_accelerate import install
from dynaquant_accelerate.guard import require_known, require_whole_weights
from dynaquant_core.errors import (
    ConfigError,
    DependencyError,
    DynaQuantError,
    EmptyStoreError,
    NotAStoreError,
    StateMismatchError,
)
from tests.gloo import a_group_of_one
from tests.integrations.accelerate.kit import EPOCH, EXACT, Net, bits, build, evaluate, train


def saved(folder, **options):
    bench = train(build(folder, options=EXACT | options), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    return folder / "checkpoints" / "checkpoint_0"


def test_our_folder_loaded_without_install_says_what_to_call(tmp_path):
    folder = saved(tmp_path)
    plain = build(tmp_path, ours=False)
    with pytest.raises(Exception, match="dynaquant_accelerate") as caught:
        plain.accelerator.load_state(str(folder))
    assert "InstallFirst" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": -1}, "threshold"),
        ({"mode": "best"}, "mode"),
        ({"every": 0}, "every"),
        ({"every": "10ba"}, "every"),
        ({"moments": "4bit"}, "moments"),
        ({"window": 1.5}, "window"),
        ({"on_error": "ignore"}, "on_error"),
        ({"evaluate": 3}, "evaluate"),
    ],
)
def test_wrong_options(tmp_path, options, said):
    bench = build(tmp_path, ours=False)
    with pytest.raises(ConfigError, match=said):
        install(bench.accelerator, **options)
    assert "save_state" not in vars(bench.accelerator)


def test_before_prepare(tmp_path):
    with pytest.raises(ConfigError, match=r"after accelerator\.prepare"):
        install(Accelerator(cpu=True))


def test_sharded_set_ups_and_writing_on_every_node():
    project = SimpleNamespace(save_on_each_node=False)
    for kind in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        with pytest.raises(ConfigError, match=f"{kind.value}.*leave out install"):
            require_whole_weights(SimpleNamespace(distributed_type=kind, project_configuration=project))
    project = SimpleNamespace(save_on_each_node=True)
    with pytest.raises(ConfigError, match="save_on_each_node"):
        require_whole_weights(
            SimpleNamespace(distributed_type=DistributedType.NO, project_configuration=project)
        )


def test_a_model_that_the_user_has_sharded(tmp_path):
    """Accelerate takes it for one that every process holds whole."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    with a_group_of_one(tmp_path):
        accelerator = Accelerator(cpu=True)
        fully_shard(model[1])
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ConfigError, match="is sharded"):
            install(accelerator)
        assert "save_state" not in vars(accelerator)


def test_an_accelerate_that_lacks_what_is_used_here():
    with pytest.raises(DependencyError, match="pip install"):
        require_known(SimpleNamespace(_models=[]))


def test_wrong_paths(tmp_path):
    bench = build(tmp_path, options=EXACT)
    with pytest.raises(EmptyStoreError, match="start without load_state"):
        bench.accelerator.load_state()
    with pytest.raises(ValueError, match="folder does not exist"):
        bench.accelerator.load_state(str(tmp_path / "nowhere"))


def test_an_unfinished_save(tmp_path):
    folder = saved(tmp_path)
    (folder / "dynaquant.json").unlink()
    with pytest.raises(NotAStoreError, match="never finished"):
        build(tmp_path, options=EXACT).accelerator.load_state(str(folder))


def test_another_frameworks_checkpoint(tmp_path):
    folder = saved(tmp_path)
    marker = json.loads((folder / "dynaquant.json").read_text())
    (folder / "dynaquant.json").write_text(json.dumps(marker | {"framework": "lightning"}))
    with pytest.raises(NotAStoreError, match="checkpoint of lightning"):
        build(tmp_path, options=EXACT).accelerator.load_state(str(folder))


def test_a_model_or_an_optimizer_that_changed(tmp_path):
    saved(tmp_path)
    wider = build(tmp_path, width=64, options=EXACT)
    before = bits(wider.model.state_dict())
    with pytest.raises(StateMismatchError, match=r"body\.0\.weight"):
        wider.accelerator.load_state()
    assert bits(wider.model.state_dict()) == before
    other = build(tmp_path, ours=False)
    other.accelerator.prepare(Net(), torch.optim.SGD(Net().parameters(), lr=0.1))
    install(other.accelerator, **EXACT)
    with pytest.raises(StateMismatchError, match="model"):
        other.accelerator.load_state()


def test_a_damaged_file_is_named(tmp_path):
    folder = saved(tmp_path)
    [file] = folder.glob("*.dq")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    with pytest.raises(DynaQuantError):
        build(tmp_path, options=EXACT).accelerator.load_state()


def test_an_evaluate_that_fails_warns_or_raises_and_training_goes_on(tmp_path, caplog):
    def broken():
        raise ValueError("no data today")

    bench = build(tmp_path, options={"evaluate": broken, "on_error": "warn"})
    train(bench, EPOCH, save_every=EPOCH).ours.wait()
    assert "no data today" in caplog.text
    assert bench.ours.last.step == EPOCH
    strict = build(tmp_path / "strict", options={"evaluate": broken})
    with pytest.raises(DynaQuantError, match="no data today"):
        train(strict, EPOCH, save_every=EPOCH)
    train(strict, EPOCH)


def test_saving_turned_off_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    bench = train(build(tmp_path, options={"evaluate": evaluate}), EPOCH, save_every=EPOCH)
    assert not (tmp_path / "checkpoints").exists()
    assert bench.done == EPOCH
