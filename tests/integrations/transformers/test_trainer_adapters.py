"""Models with adapters (PEFT): saved and restored is what the Trainer would natively, and nothing else."""

import warnings

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from dynaquant_core.plugins import describe, read_tree
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, bits, everything, gpt, names, trainer

peft = pytest.importorskip("peft", reason="peft is not installed in this environment")


def lora(seed=0, adapters=("default",), **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft, about transformers
        base = gpt()
        torch.manual_seed(seed + 100)
        made = [
            peft.LoraConfig(
                task_type="CAUSAL_LM", r=16, target_modules=["c_attn"], fan_in_fan_out=True, **options
            )
            for _ in adapters
        ]
        model = peft.get_peft_model(base, made[0], adapter_name=adapters[0])
        for name, config in zip(adapters[1:], made[1:], strict=True):
            model.add_adapter(name, config)
    return model


@pytest.mark.parametrize(
    "kind", [{}, {"modules_to_save": ["ln_f"]}, {"use_dora": True}, {"adapters": ("default", "other")}]
)
def test_of_a_model_with_adapters_only_they_are_saved(tmp_path, kind):
    one = trainer(tmp_path, DynaQuantCallback(threshold=0.05), model=lora(**kind))
    one.train()
    folder = tmp_path / "checkpoint-8"
    assert "adapter_config.json" in names(folder)
    assert list(folder.rglob("*.safetensors")) == []
    stored = read_tree(folder)
    assert set(stored["adapters"]) == set(kind.get("adapters", ["default"]))
    native = trainer(tmp_path / "native", model=lora(**kind), max_steps=1, save_steps=1)
    native.train()
    wanted = load_file(tmp_path / "native" / "checkpoint-1" / "adapter_model.safetensors")
    assert stored["adapters"]["default"].keys() == wanted.keys()
    assert describe(folder).degradation is not None, "candidates were tried in the live adapters"


@pytest.mark.parametrize("kind", [{}, {"modules_to_save": ["ln_f"]}])
def test_a_resumed_adapter_is_the_uninterrupted_one(tmp_path, kind):
    whole = trainer(tmp_path / "whole", model=lora(**kind))
    whole.train()
    trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), model=lora(**kind)).train()
    again = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), model=lora(seed=1, **kind))
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-4"))
    assert everything(again) == everything(whole)


class Allocate(TrainerCallback):
    """Moves AdaLoRA's ranks to where they serve, as a script has to."""

    def on_optimizer_step(self, args, state, control, model=None, **_):
        if hasattr(model.base_model, "update_and_allocate"):
            model.base_model.update_and_allocate(state.global_step + 1)


def cut(kind, seed=0):
    """A model whose adapters' stored tensors are worked out of the live ones."""
    given = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    configs = {
        "adalora": lambda: peft.AdaLoraConfig(
            init_r=6, target_r=2, total_step=8, tinit=1, tfinal=5, deltaT=1, **given
        ),
        "vblora": lambda: peft.VBLoRAConfig(
            r=4, num_vectors=8, vector_length=16, topk=2, save_only_topk_weights=True, **given
        ),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft, about transformers and about what top-k weights lose
        base = gpt()
        torch.manual_seed(seed + 100)
        return peft.get_peft_model(base, configs[kind]())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["adalora", "vblora"])
def test_adapters_that_work_with_their_weights_when_they_are_saved_are_saved(tmp_path, kind):
    native = trainer(tmp_path / "native", Allocate(), model=cut(kind))
    native.train()
    one = trainer(tmp_path / "ours", Allocate(), DynaQuantCallback(**EXACT), model=cut(kind))
    one.train()
    assert everything(one) == everything(native)
    for step in (2, 4, 6, 8):
        folder = tmp_path / "ours" / f"checkpoint-{step}"
        assert list(folder.rglob("*.safetensors")) == []
        wanted = load_file(tmp_path / "native" / folder.name / "adapter_model.safetensors")
        assert bits(read_tree(folder)["adapters"]["default"]) == bits(wanted)


def test_the_best_adapter_is_loaded_at_the_end(tmp_path):
    given = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "learning_rate": 3.0,
        "lr_scheduler_type": "constant",
    }
    whole = trainer(tmp_path / "native", model=lora(), **given)
    whole.train()
    one = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), model=lora(), **given)
    one.train()
    assert one.state.best_global_step == whole.state.best_global_step
    assert bits(dict(one.model.state_dict())) == bits(dict(whole.model.state_dict()))
