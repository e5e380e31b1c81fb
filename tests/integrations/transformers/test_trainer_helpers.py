"""What a subclass does beside the Trainer's saving and loading, which it comes to by a way of its own."""

import pytest
from transformers import Trainer

from dynaquant_transformers import DynaQuantCallback, DynaQuantTrainerMixin
from dynaquant_transformers.hiding import hides
from tests.integrations.transformers.kit import EXACT, everything, gpt, names, trainer

BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}

METHODS = (
    "_save_optimizer_and_scheduler",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_best_model",
)


class Helped(Trainer):
    """Comes to the Trainer's methods through one of its own, and notes that it has."""

    def __init__(self, *args, **kwargs):
        self.noted = []
        super().__init__(*args, **kwargs)

    def _saves(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)

    def _reads(self, *args):
        super()._load_from_checkpoint(*args)

    def _goes_on(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)

    def _takes_best(self):
        super()._load_best_model()

    def _save_optimizer_and_scheduler(self, output_dir):
        self._saves(output_dir)
        self.noted.append("_save_optimizer_and_scheduler")

    def _load_from_checkpoint(self, *args):
        self._reads(*args)
        self.noted.append("_load_from_checkpoint")

    def _load_optimizer_and_scheduler(self, checkpoint):
        self._goes_on(checkpoint)
        self.noted.append("_load_optimizer_and_scheduler")

    def _load_best_model(self):
        self._takes_best()
        self.noted.append("_load_best_model")


def noting(method):
    def around(self, *args):
        method(self, *args)
        self.noted.append(method.__name__)

    return around  # without functools.wraps


class Decorated(Trainer):
    """The same under a decorator that does not say what it was put around."""

    def __init__(self, *args, **kwargs):
        self.noted = []
        super().__init__(*args, **kwargs)

    @noting
    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)

    @noting
    def _load_from_checkpoint(self, *args):
        super()._load_from_checkpoint(*args)

    @noting
    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)

    @noting
    def _load_best_model(self):
        super()._load_best_model()


class Partly(Trainer):
    """Has methods with helpers that come to the Trainer's, and others that do not."""

    def _save(self, output_dir=None, state_dict=None):
        self._writes(output_dir)

    def _writes(self, output_dir):
        self.model.save_pretrained(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        getattr(super(), "_load_from_checkpoint")(resume_from_checkpoint, model)  # noqa: B009

    def _load_optimizer_and_scheduler(self, checkpoint):
        natively(self, checkpoint)

    @noting
    def _load_best_model(self):
        self.model.load_adapter(self.state.best_model_checkpoint)


def natively(one, checkpoint):
    Trainer._load_optimizer_and_scheduler(one, checkpoint)


def test_who_never_comes_to_the_trainer_is_told_from_who_does():
    hidden = {name: hides(Partly, name) for name in ("_save", *METHODS)}
    assert [name for name, is_hidden in hidden.items() if is_hidden] == ["_save", "_load_best_model"]


class Over(Decorated, DynaQuantTrainerMixin, Trainer):
    pass


class Mixed(DynaQuantTrainerMixin, Decorated):
    pass


@pytest.mark.parametrize(
    ("kind", "like"),
    [(Helped, Helped), (Decorated, Decorated), (Over, Decorated), (Mixed, Decorated)],
)
def test_what_a_subclass_does_beside_is_done_as_natively(tmp_path, kind, like):
    def runs(folder, kind, *callbacks):
        first = trainer(folder, *callbacks, kind=kind, max_steps=4, **BEST)
        first.train()
        again = trainer(folder, *callbacks, kind=kind, model=gpt(seed=9), max_steps=6)
        again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        return [first.noted, again.noted, everything(first), everything(again)]

    native = runs(tmp_path / "native", like)
    assert set(native[0] + native[1]) == set(METHODS)
    assert runs(tmp_path / "ours", kind, DynaQuantCallback(**EXACT)) == native
    assert "optimizer.pt" not in names(tmp_path / "ours" / "checkpoint-4")
