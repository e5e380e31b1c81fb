"""What a user's hooks, models and arguments do to a checkpoint natively, they do to one of ours."""

import gc
import weakref
from fractions import Fraction

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import nn

from dynaquant_accelerate import export, install, newest
from dynaquant_core.errors import EvaluationError
from dynaquant_core.plugins import describe
from tests.integrations.accelerate.conftest import forget
from tests.integrations.accelerate.kit import (
    EPOCH,
    EXACT,
    Net,
    bits,
    build,
    evaluate,
    everything,
    resume,
    train,
)


def saved(bench):
    train(bench, EPOCH, save_every=EPOCH).ours.wait()
    return bench


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_a_hook_writes_under_accelerates_own_name_stay(tmp_path, name):
    def write(models, weights, folder):
        state = weights.pop()
        (torch.save if name.endswith("bin") else save_file)(state, f"{folder}/{name}")

    bench = build(tmp_path, options=EXACT)
    bench.accelerator.register_save_state_pre_hook(write)
    saved(bench)
    again = resume(build(tmp_path, seed=3, options=EXACT))  # Accelerate itself knows the name
    assert everything(again) == everything(bench)
    export(None, tmp_path / "native", newest(tmp_path / "checkpoints"))
    forget()
    plain = build(tmp_path, ours=False, seed=3)
    plain.accelerator.load_state(str(tmp_path / "native"))
    assert bits(plain.model.state_dict()) == bits(bench.model.state_dict())


def test_weights_that_a_hook_has_copied_in_another_precision_are_saved(tmp_path):
    def shorten(models, weights, folder):
        weights[0] = {name: value.bfloat16() for name, value in weights[0].items()}

    bench = build(tmp_path, options=EXACT)
    bench.accelerator.register_save_state_pre_hook(shorten)
    saved(bench)
    assert everything(resume(build(tmp_path, seed=3, options=EXACT))) == everything(bench)


def test_a_hook_that_loads_by_itself_what_was_saved_all_the_same(tmp_path):
    bench = saved(build(tmp_path, options=EXACT))
    again = build(tmp_path, seed=3, options=EXACT)
    before = bits(again.model.state_dict())
    again.accelerator.register_load_state_pre_hook(lambda models, folder: models.clear())
    again.accelerator.load_state()
    assert bits(again.model.state_dict()) == before
    assert bits(again.optimizer.state_dict()) == bits(bench.optimizer.state_dict())


def test_a_prepared_loss_has_nothing_to_save(tmp_path):
    def with_loss(**options):
        bench = build(tmp_path, ours=False, **options)
        bench.accelerator.prepare(nn.CrossEntropyLoss())
        bench.ours = install(bench.accelerator, **EXACT)
        return bench

    bench = saved(with_loss())
    assert everything(resume(with_loss(seed=3))) == everything(bench)


def test_a_native_save_over_a_checkpoint_of_ours_is_the_newer_one(tmp_path):
    bench = train(build(tmp_path, options=EXACT), EPOCH)
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    bench.accelerator.save_state(str(tmp_path / "latest"))
    bench.ours.close()
    train(bench, 2 * EPOCH)
    bench.accelerator.save_state(str(tmp_path / "latest"))
    again = build(tmp_path, seed=3, options=EXACT)
    again.accelerator.load_state(str(tmp_path / "latest"))
    assert bits(again.model.state_dict()) == bits(bench.model.state_dict())
    assert bits(again.optimizer.state_dict()) == bits(bench.optimizer.state_dict())


def test_an_optimizer_with_objects_of_any_class_loads_where_the_user_trusts_them(tmp_path):
    def odd(**options):
        bench = build(tmp_path, options=EXACT, **options)
        bench.optimizer.param_groups[0]["share"] = Fraction(1, 3)
        return bench

    bench = saved(odd())
    again = odd(seed=3)
    again.accelerator.load_state(load_kwargs={"weights_only": False})
    assert bits(again.optimizer.state_dict()) == bits(bench.optimizer.state_dict())


def test_installing_again_goes_on_counting(tmp_path):
    bench = saved(build(tmp_path, options=EXACT))
    bench.ours = install(bench.accelerator, **EXACT, threshold=0.001)
    assert bench.ours.step == EPOCH
    assert train(bench, 2 * EPOCH, save_every=EPOCH).ours.wait().step == 2 * EPOCH


def test_an_average_registered_at_any_time_keeps_its_buffers_and_leaves_evaluate_its_model(tmp_path):
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))
            self.register_buffer("table", torch.randn(64, 64))

    def with_average(late, folder, **options):
        bench, average = build(folder, ours=False, **options), Average()
        if not late:
            bench.accelerator.register_for_checkpointing(average)
        bench.ours = install(bench.accelerator, evaluate=evaluate)
        if late:
            bench.accelerator.register_for_checkpointing(average)
        return bench, average

    for late in (False, True):
        bench, average = with_average(late, tmp_path / str(late))
        assert saved(bench).ours.last.met
        again, restored = with_average(late, tmp_path / str(late), seed=3)
        again.accelerator.load_state()
        assert torch.equal(restored.table, average.table)


def test_uninstalling_leaves_a_wrapper_of_the_users(tmp_path):
    bench, calls = build(tmp_path, ours=False), []
    native = bench.accelerator.save_state
    bench.accelerator.save_state = lambda *words, **more: (calls.append(words), native(*words, **more))[1]
    ours = install(bench.accelerator, **EXACT)
    bench.accelerator.save_state()
    ours.close()
    bench.accelerator.save_state()
    assert len(calls) == 2


def test_several_models_come_to_evaluate_by_name(tmp_path):
    inputs = torch.randn(16, 32)
    seen = []

    def error(models):
        seen.append(sorted(models))
        return float((models["model_0"](inputs) - models["model_1"](inputs)).square().mean())

    for evaluate_both in (error, lambda model: model(inputs).sum()):
        accelerator = Accelerator(cpu=True, project_dir=str(tmp_path))
        student, teacher = nn.Linear(32, 32), nn.Linear(32, 32).requires_grad_(requires_grad=False)
        optimizer = torch.optim.AdamW(student.parameters())
        student, teacher, optimizer = accelerator.prepare(student, teacher, optimizer)
        ours = install(accelerator, evaluate=evaluate_both)
        accelerator.backward((student(inputs) - teacher(inputs)).square().mean())
        optimizer.step()
        if evaluate_both is error:
            accelerator.save_state(str(tmp_path / "saved"))
            assert ours.wait().met
            assert seen[0] == ["model_0", "model_1"]
        else:
            with pytest.raises(EvaluationError, match="mapping of model_0, model_1"):
                accelerator.save_state(str(tmp_path / "refused"))


def test_a_signal_during_a_search_saves_the_model_and_no_candidate(tmp_path):
    calls = []

    def watched(model):
        calls.append(bits(model.state_dict()))
        if len(calls) == 2:
            bench.accelerator.save_state()  # as a handler of a signal would
        return evaluate(model)

    bench = build(tmp_path, options={"evaluate": watched, "threshold": 0.5})
    saved(bench)
    assert calls[1] != calls[0]
    mine, asked = (describe(tmp_path / f"checkpoints/checkpoint_{at}").quality for at in (0, 1))
    assert asked["reference"] == mine["reference"]


def test_memory_that_is_freed_is_free(tmp_path):
    """The recipe for a batch that is too large: free, build anew, prepare, install."""
    bench = saved(build(tmp_path, options={"evaluate": evaluate}))
    model, optimizer = weakref.ref(bench.model), weakref.ref(bench.optimizer.optimizer)
    runner, ours = bench.accelerator, bench.ours
    bench.model, bench.optimizer, bench.scheduler, bench.loader = runner.clear(
        bench.model, bench.optimizer, bench.scheduler, bench.loader
    )
    gc.collect()
    assert model() is None
    assert optimizer() is None
    net = Net()
    bench.model, bench.optimizer = runner.prepare(net, torch.optim.AdamW(net.parameters()))
    runner.save_state()
    assert ours.wait() is not None
    ours.close()
    assert "free_memory" not in vars(runner)
