import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from dynaquant_core.plugins import describe, is_checkpoint
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, bits, everything, fit, loaders, saves, trainer


@pytest.fixture(scope="module")
def uninterrupted():
    """Four epochs without us."""
    return everything(fit("unused", epochs=4))


@pytest.mark.parametrize("name", ["last", "path"])
def test_with_everything_exact_a_resumed_run_is_the_uninterrupted_one(tmp_path, uninterrupted, name):
    first = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=2)
    path = "last" if name == "last" else first.checkpoint_callback.best_model_path
    resumed = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=4, ckpt_path=path, seed=5)
    assert everything(resumed) == uninterrupted


def test_saving_and_searching_leave_training_as_it_is(tmp_path, uninterrupted):
    run = fit(
        tmp_path, saves(tmp_path, every_n_epochs=None, every_n_train_steps=13), DynaQuantCallback(), epochs=4
    )
    assert everything(run) == uninterrupted
    assert describe(tmp_path / "last.ckpt").evaluations > 0


def test_training_that_draws_random_numbers_is_left_as_it_is(tmp_path):
    def train(folder, *callbacks):
        data = loaders(shuffle=True)
        return everything(
            fit(folder, *callbacks, model=lambda: Digits(dropout=0.3), data=data, num_sanity_val_steps=0)
        )

    plain = train(tmp_path / "plain", saves(tmp_path / "plain"))
    assert train(tmp_path / "ours", saves(tmp_path / "ours"), DynaQuantCallback()) == plain


def test_a_resumed_run_reaches_what_native_checkpoints_reach(tmp_path):
    def final(folder, *callbacks):
        fit(folder, saves(folder), *callbacks, epochs=2)
        run = fit(folder, saves(folder), *callbacks, epochs=4, ckpt_path="last", seed=3)
        return float(run.callback_metrics["val_loss"])

    native = final(tmp_path / "native")
    assert final(tmp_path / "ours", DynaQuantCallback()) == pytest.approx(native, rel=0.05)


def test_a_checkpoint_is_a_folder_a_fraction_of_the_native_file(tmp_path):
    model = Digits(width=512)
    fit(
        tmp_path / "ours",
        saves(tmp_path / "ours", save_last=False),
        DynaQuantCallback(),
        model=model,
        epochs=1,
    )
    fit(tmp_path / "native", saves(tmp_path / "native", save_last=False), model=Digits(width=512), epochs=1)
    ours, native = tmp_path / "ours" / "step=20.ckpt", tmp_path / "native" / "step=20.ckpt"
    assert is_checkpoint(ours)
    size = sum(file.stat().st_size for file in ours.iterdir())
    assert size * 4 < native.stat().st_size


def test_validate_and_load_from_checkpoint_read_our_folders(tmp_path):
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), model=Digits(width=40), epochs=2)
    wanted = bits(run.lightning_module.state_dict())
    path = run.checkpoint_callback.best_model_path
    loaded = Digits.load_from_checkpoint(path)
    assert (bits(loaded.state_dict()), loaded.hparams.width) == (wanted, 40)
    assert Digits.load_from_checkpoint(path, lr=0.5, map_location="cpu").hparams.lr == 0.5
    validation = loaders()[1]
    with_us, without = trainer(tmp_path, DynaQuantCallback()), trainer(tmp_path)
    expected = run.callback_metrics["val_loss"]
    for other in (with_us, without):
        found = other.validate(Digits(width=40), validation, ckpt_path=path, verbose=False)
        assert found[0]["val_loss"] == pytest.approx(float(expected))


def test_best_is_found_after_a_fit(tmp_path):
    callback = saves(tmp_path, monitor="val_loss", save_top_k=1)
    run = fit(tmp_path, callback, DynaQuantCallback(**EXACT))
    found = run.validate(dataloaders=loaders()[1], ckpt_path="best", verbose=False)
    assert found[0]["val_loss"] == pytest.approx(float(callback.best_model_score))


def test_save_checkpoint_by_hand_is_there_when_it_returns(tmp_path):
    run = fit(tmp_path, DynaQuantCallback(**EXACT), epochs=1)
    run.save_checkpoint(tmp_path / "mine.ckpt")
    assert is_checkpoint(tmp_path / "mine.ckpt")
    loaded = Digits.load_from_checkpoint(tmp_path / "mine.ckpt")
    assert bits(loaded.state_dict()) == bits(run.lightning_module.state_dict())
    run.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert bits(Digits.load_from_checkpoint(tmp_path / "weights.ckpt").state_dict()) == bits(
        loaded.state_dict()
    )


def size(model):
    return sum(weight.square().sum() for weight in model.parameters())


@pytest.mark.parametrize(("ask", "evaluate"), [("validate", None), ("test", "val_loss"), ("predict", size)])
def test_another_module_that_was_looked_at_is_saved_without_a_search_by_the_first(
    tmp_path, caplog, ask, evaluate
):
    class Both(Digits):
        test_step = Digits.validation_step

        def predict_step(self, batch):
            return self(batch[0])

    run = fit(tmp_path, DynaQuantCallback(evaluate=evaluate), model=lambda: Both(width=64), epochs=1)
    run.save_checkpoint(tmp_path / "first.ckpt")
    assert describe(tmp_path / "first.ckpt").evaluations > 0
    other = Both(width=96)
    more = {} if ask == "predict" else {"verbose": False}
    getattr(run, ask)(other, loaders()[1], **more)
    for name in ("second.ckpt", "third.ckpt"):
        run.save_checkpoint(tmp_path / name)
        found = describe(tmp_path / name)
        assert (found.evaluations > 0) is callable(evaluate)
        weights = Both.load_from_checkpoint(tmp_path / name).net[0].weight
        assert 0 < (weights - other.net[0].weight).abs().max() < other.net[0].weight.std()
    said = "no search, as the module to save is not the one that was trained"
    assert caplog.text.count(said) == (not callable(evaluate))
    run.fit_loop.max_epochs = 2
    run.fit(other, *loaders())
    run.save_checkpoint(tmp_path / "fourth.ckpt")
    assert describe(tmp_path / "fourth.ckpt").evaluations > 0


def test_an_exception_is_saved_on_and_passed_on(tmp_path):
    class Breaks(Digits):
        def on_train_batch_start(self, batch, batch_idx):
            if self.global_step == 45:
                raise RuntimeError("the power went out")

    callback = saves(tmp_path, save_on_exception=True, every_n_epochs=10, save_last=False)
    with pytest.raises(RuntimeError, match="the power went out"):
        fit(tmp_path, callback, DynaQuantCallback(**EXACT), model=Breaks(), epochs=4)
    resumed = fit(
        tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=4, ckpt_path=tmp_path / "step=45.ckpt"
    )
    assert resumed.global_step == 80


def test_a_measure_that_fails_does_not_hide_an_exception(tmp_path, caplog):
    def fails():
        raise ValueError("no measure")

    class Breaks(Digits):
        def on_train_epoch_start(self):
            raise RuntimeError("the power went out")

    callback = saves(tmp_path, save_on_exception=True, save_last=False)
    callback._last_global_step_saved = -1
    with pytest.raises(RuntimeError, match="the power went out"):
        fit(tmp_path, callback, DynaQuantCallback(evaluate=fails), model=Breaks, epochs=1)
    assert "no checkpoint of the interrupted training" in caplog.text


def test_two_trainers_in_one_process_one_without_us(tmp_path):
    fit(tmp_path / "ours", saves(tmp_path / "ours"), DynaQuantCallback(), epochs=1)
    fit(tmp_path / "native", saves(tmp_path / "native"), epochs=1)
    assert is_checkpoint(tmp_path / "ours" / "last.ckpt")
    assert torch.load(tmp_path / "native" / "last.ckpt", weights_only=False)["global_step"] == 20


def test_one_callback_serves_fit_after_fit(tmp_path):
    callback = DynaQuantCallback(**EXACT)
    run = fit(tmp_path, saves(tmp_path), callback, epochs=1)
    run.fit_loop.max_epochs = 2
    run.fit(run.lightning_module, *loaders(), ckpt_path="last")
    assert describe(tmp_path / "last.ckpt").step == 40
    again = fit(tmp_path / "again", saves(tmp_path / "again"), callback, epochs=1)
    assert describe(tmp_path / "again" / "last.ckpt").kind == "key"
    assert again.strategy.checkpoint_io is not run.strategy.checkpoint_io


def test_disabled_by_the_environment_nothing_is_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1)
    assert not list(tmp_path.glob("*.ckpt"))


def test_figures_go_to_the_framework_s_logger(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    fit(tmp_path, ModelCheckpoint(tmp_path, every_n_epochs=1), DynaQuantCallback(), epochs=2, logger=logger)
    logger.save()
    text = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    head, *rows = [line.split(",") for line in text.splitlines()]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    ratios = {row["step"]: float(row["dynaquant/ratio"]) for row in found if row["dynaquant/ratio"]}
    assert set(ratios) == {"20", "40"}
    assert min(ratios.values()) > 2
    assert {"dynaquant/degradation", "dynaquant/seconds/search", "dynaquant/seconds/held"} <= set(head)
