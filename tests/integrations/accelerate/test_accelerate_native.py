"""Leaving and joining: native folders loaded with us, ours exported and loaded without us."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn

import dynaquant_core as dq
from dynaquant_accelerate import export, install
from dynaquant_core.cli import main
from dynaquant_core.errors import NotAStoreError, StateMismatchError, StorageError, UnsafePathError
from dynaquant_core.plugins import read_tree
from tests.full_disk import files_of_at_most
from tests.integrations.accelerate.conftest import forget
from tests.integrations.accelerate.kit import EPOCH, EXACT, Net, bits, build, everything, names, resume, train

#: In which models and a loss, which has no state, may be prepared.
ORDERS = ["model loss", "loss model", "model loss second", "loss model second", "model second"]


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
    (tmp_path / "there" / "notes.txt").touch()
    with pytest.raises(UnsafePathError, match="exists already"):
        export(None, tmp_path / "there", source)
    with pytest.raises(NotAStoreError, match="no DynaQuant checkpoint of Accelerate"):
        export(None, tmp_path / "new", tmp_path)
    with pytest.raises(StateMismatchError, match="--to pt"):
        export({"weights": 1}, tmp_path / "new")
    before = names(tmp_path)
    with files_of_at_most(1000), pytest.raises(StorageError, match=r"File too large; .*"):
        export(None, tmp_path / "new", source)
    with pytest.raises(StorageError, match="remove the file that is in the way"):
        export(None, source / "pytorch_model.bin" / "new", source)
    assert names(tmp_path) == before


def test_what_is_exported_without_its_folder_says_what_is_missing(tmp_path, caplog):
    """`load_state` fails on such a folder, over a file that it does not find."""
    bench = train(build(tmp_path, options=EXACT), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    source = tmp_path / "checkpoints" / "checkpoint_0"
    export(read_tree(source), tmp_path / "new")
    assert names(tmp_path / "new") == ["optimizer.bin", "pytorch_model.bin"]
    assert "copy the checkpoint's other files there" in caplog.text
    caplog.clear()
    export(None, source / "native", source)
    assert "random_states_0.pkl" in names(source / "native")
    assert caplog.text == ""


def trained_by_hand():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_a_store_whose_optimizer_goes_by_names_is_refused(tmp_path, capsys):
    """As a `Checkpointer` keeps it: Accelerate would load none, and its keys were written as optimizers."""
    model, optimizer = trained_by_hand()
    with dq.Checkpointer(tmp_path / "store", model, optimizer, every=1) as checkpoints:
        checkpoints.step()
    out = str(tmp_path / "native")
    assert main(["export", str(tmp_path / "store"), "--to", "accelerate", "-o", out]) == 1
    assert "(a Checkpointer's have names); export it with --to pt." in capsys.readouterr().err
    assert names(tmp_path) == ["store"]
    groups = optimizer.state_dict()
    for model_state, several in (({"a": model.state_dict()}, groups), (model.state_dict(), {"a": groups})):
        with pytest.raises(StateMismatchError, match="not what DynaQuant saves for Accelerate"):
            export({"model": model_state, "optimizer": several}, out)


@pytest.mark.parametrize("alone", [True, False])
def test_a_store_of_what_state_dict_gives_is_exported(tmp_path, alone):
    model, optimizer = trained_by_hand()
    held = optimizer.state_dict() if alone else [optimizer.state_dict()]
    export({"model": model.state_dict(), "optimizer": held}, tmp_path / "native")
    assert names(tmp_path / "native") == ["optimizer.bin", "pytorch_model.bin"]
    found = torch.load(tmp_path / "native" / "optimizer.bin")
    assert bits(found) == bits(optimizer.state_dict())


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


@pytest.mark.parametrize("safe", [True, False])
def test_weights_that_are_nobodys_checkpoint_stay_where_they_are(tmp_path, caplog, safe):
    """An export of the user's, in the folder that is saved into and in one that automatic naming ignores."""
    bench = train(build(tmp_path, options=EXACT), EPOCH)
    out, exported = tmp_path / "out", bits(bench.model.state_dict())
    bench.accelerator.save_model(bench.model, str(out), safe_serialization=safe)
    [file] = names(out)
    content = (out / file).read_bytes()
    bench.accelerator.save_state(str(out))
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    train(bench, 2 * EPOCH)
    for _ in range(2):
        bench.accelerator.save_state(str(out))
    bench.ours.wait()
    assert (out / file).read_bytes() == content
    assert caplog.text.count(f"{file} in {out} is no part") == 1
    again = resume(build(tmp_path, seed=3, options=EXACT), str(out))
    assert everything(again) == everything(bench)
    export(None, tmp_path / "native", out)
    plain = build(tmp_path, ours=False, seed=3)
    plain.accelerator.load_state(str(tmp_path / "native"))
    assert exported != bits(plain.model.state_dict()) == bits(bench.model.state_dict())


def test_a_native_checkpoint_that_is_saved_over_keeps_its_weights_until_ours_is_whole(tmp_path):
    bench = build(tmp_path, ours=False)
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    train(bench, EPOCH)
    bench.accelerator.save_state(str(tmp_path / "same"))
    bench.ours = install(bench.accelerator, **EXACT | {"on_error": "warn"})
    bench.optimizer.param_groups[0]["odd"] = lambda: 0  # cannot be pickled
    bench.accelerator.save_state(str(tmp_path / "same"))
    assert "model.safetensors" in names(tmp_path / "same")
    del bench.optimizer.param_groups[0]["odd"]
    bench.accelerator.save_state(str(tmp_path / "same"))
    bench.accelerator.save_model(bench.model, str(tmp_path / "same"))  # behind the save, by the user
    bench.ours.wait()
    assert "model.safetensors" in names(tmp_path / "same")


def test_the_commands_tell_a_folder_that_was_saved_over_natively(tmp_path, capsys):
    bench = train(build(tmp_path, options=EXACT), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    source, out = str(tmp_path / "checkpoints" / "checkpoint_0"), str(tmp_path / "out.pt")
    assert main(["verify", source]) == main(["log", source]) == 0
    assert "natively" not in "".join(capsys.readouterr())
    forget()
    plain = build(tmp_path / "plain", ours=False)
    plain.accelerator.project_configuration.automatic_checkpoint_naming = False
    plain.accelerator.save_state(source)
    assert main(["log", source]) == 0
    assert "saved natively over" in capsys.readouterr().err
    assert main(["verify", source]) == main(["export", source, "-o", out]) == 1
    assert "saved natively over" in capsys.readouterr().err
    assert "out.pt" not in names(tmp_path)


def prepared(order, *averaged):
    """(the accelerator, modules by name): these are prepared in this order, and averages registered."""
    forget()
    modules = {"model": nn.Linear(4, 3), "second": nn.Linear(3, 4), "loss": nn.CrossEntropyLoss()}
    optimizer = torch.optim.Adam([*modules["model"].parameters(), *modules["second"].parameters()])
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(*[modules[name] for name in order], optimizer)
    accelerator.register_for_checkpointing(*averaged)
    return accelerator, {name: modules[name] for name in order}


def test_a_script_that_only_evaluates_loads_the_weights_alone(tmp_path):
    """As natively: nothing is put back for an optimizer that is not there; one model too few is an error."""
    bench = train(build(tmp_path, options=EXACT), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    forget()
    scorer, model = Accelerator(cpu=True), Net()
    scorer.prepare(model)
    ours = install(scorer)
    scorer.load_state(str(tmp_path / "checkpoints" / "checkpoint_0"))
    assert ours.step == EPOCH
    assert bits(model.state_dict()) == bits(bench.model.state_dict())
    scorer.save_state(str(tmp_path / "scored"))
    with pytest.raises(StateMismatchError, match="1 optimizers here and 0 in the checkpoint"):
        build(tmp_path, options=EXACT).accelerator.load_state(str(tmp_path / "scored"))
    scorer.load_state(str(tmp_path / "scored"))


def weights(modules):
    return bits({name: module.state_dict() for name, module in modules.items()})


@pytest.mark.parametrize("order", ORDERS)
def test_a_prepared_loss_keeps_its_place(tmp_path, order):
    accelerator, modules = prepared(order.split())
    ours = install(accelerator, **EXACT)
    accelerator.save_state(str(tmp_path / "ours"))
    ours.wait()
    export(None, tmp_path / "native", tmp_path / "ours")
    export(read_tree(tmp_path / "ours"), tmp_path / "bare")
    assert weights_files(tmp_path / "bare") == weights_files(tmp_path / "native")
    plain, others = prepared(order.split())
    assert weights(others) != weights(modules)
    plain.load_state(str(tmp_path / "native"))
    assert weights(others) == weights(modules)


def weights_files(folder):
    return [name for name in names(folder) if name.startswith("pytorch_model")]


def test_a_registered_loss_keeps_its_place_among_averages(tmp_path):
    average = nn.Linear(4, 3)
    accelerator, _ = prepared(["model"], nn.CrossEntropyLoss(), average)
    ours = install(accelerator, **EXACT)
    accelerator.save_state(str(tmp_path / "ours"))
    ours.wait()
    export(None, tmp_path / "native", tmp_path / "ours")
    other = nn.Linear(4, 3)
    plain, _ = prepared(["model"], nn.CrossEntropyLoss(), other)
    plain.load_state(str(tmp_path / "native"))
    assert bits(other.state_dict()) == bits(average.state_dict())


def test_what_a_hook_has_taken_out_leaves_no_place(tmp_path):
    """Natively the file of the first model is then that of the next."""

    def take(models, states, folder):
        states.pop(0)

    def leave(models, folder):
        models.pop(0)

    accelerator, modules = prepared(["model", "loss", "second"])
    accelerator.register_save_state_pre_hook(take)
    ours = install(accelerator, **EXACT)
    accelerator.save_state(str(tmp_path / "ours"))
    ours.wait()
    export(None, tmp_path / "native", tmp_path / "ours")
    plain, others = prepared(["model", "loss", "second"])
    plain.register_load_state_pre_hook(leave)
    plain.load_state(str(tmp_path / "native"))
    assert bits(others["second"].state_dict()) == bits(modules["second"].state_dict())


def test_a_tree_without_the_places_of_its_files_is_exported_in_its_order(tmp_path):
    """So were trees saved before their models' files were recorded."""
    accelerator, modules = prepared(["model", "second"])
    ours = install(accelerator, **EXACT)
    accelerator.save_state(str(tmp_path / "ours"))
    ours.wait()
    tree = read_tree(tmp_path / "ours")
    del tree["files"]
    export(tree, tmp_path / "native")
    stored = [torch.load(tmp_path / "native" / name) for name in ("pytorch_model.bin", "pytorch_model_1.bin")]
    assert bits(stored) == bits([module.state_dict() for module in modules.values()])
