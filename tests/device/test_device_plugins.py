"""Frameworks that train on a device: a run that went through our checkpoints ends as one without them."""

from __future__ import annotations

import pytest

from tests.device.places import EVERYWHERE
from tests.training.models import bits

#: Frameworks warn of each other's ways (pin_memory, pytrees, loaders of one worker).
pytestmark = pytest.mark.filterwarnings("default")

#: Nothing is rounded: a resumed run is the uninterrupted one.
EXACT = {"exact": "*", "moments": "exact"}


@EVERYWHERE
def test_lightning(tmp_path, device):
    pytest.importorskip("lightning")
    from dynaquant_lightning import DynaQuantCallback
    from tests.integrations.lightning.kit import Digits, fit, saves

    def run(*callbacks, epochs, **more):
        where = {"accelerator": "gpu" if device == "cuda" else "cpu", "epochs": epochs}
        return fit(tmp_path, *callbacks, model=lambda: Digits(), **where, **more)

    plain = run(epochs=3)
    run(saves(tmp_path), DynaQuantCallback(**EXACT), epochs=2)
    resumed = run(saves(tmp_path), DynaQuantCallback(**EXACT), epochs=3, ckpt_path="last", seed=5)
    assert resumed.strategy.root_device.type == device
    for one in ("lightning_module", "optimizers"):
        found, wanted = (getattr(each, one) for each in (resumed, plain))
        found, wanted = (each if isinstance(each, list) else [each] for each in (found, wanted))
        assert [bits(each.state_dict()) for each in found] == [bits(each.state_dict()) for each in wanted]


@EVERYWHERE
def test_the_trainer(tmp_path, device):
    pytest.importorskip("transformers")
    from dynaquant_transformers import DynaQuantCallback
    from tests.integrations.transformers.kit import gpt, trainer

    where = {"use_cpu": device == "cpu"}
    plain = trainer(tmp_path / "plain", max_steps=8, save_strategy="no", **where)
    plain.train()
    assert plain.model.device.type == device
    folder = tmp_path / "ours"
    trainer(folder, DynaQuantCallback(**EXACT), max_steps=8, **where).train()
    again = trainer(folder, DynaQuantCallback(**EXACT), model=gpt(seed=9), **where)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    for one in ("model", "optimizer"):
        assert bits(getattr(again, one).state_dict()) == bits(getattr(plain, one).state_dict())


@pytest.fixture
def forget():
    """Accelerate keeps its device in a singleton, which a second one in a process would inherit."""
    pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    def now():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    now()
    yield now
    now()


@EVERYWHERE
def test_accelerate(tmp_path, forget, device):
    from tests.integrations.accelerate.kit import EPOCH, build, resume, train

    def made(folder, **more):
        forget()
        return build(tmp_path / folder, cpu=device == "cpu", **more)

    plain = train(made("plain", ours=False), 3 * EPOCH)
    train(made("cut", options=EXACT), 2 * EPOCH, save_every=EPOCH).ours.wait()
    second = resume(made("cut", seed=7, options=EXACT))
    assert second.done == 2 * EPOCH
    train(second, 3 * EPOCH)
    second.ours.wait()
    assert second.accelerator.device.type == device
    for one in ("model", "optimizer"):
        assert bits(getattr(second, one).state_dict()) == bits(getattr(plain, one).state_dict())
