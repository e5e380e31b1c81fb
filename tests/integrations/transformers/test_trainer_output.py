"""What a subclass reads and writes in the output folder itself, around a save and within it."""

from pathlib import Path

import pytest
from transformers import Trainer

from dynaquant_core.plugins import read_tree
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, checkpoints, names, trainer


class Before(Trainer):
    """Goes on with a file of its own before the Trainer saves, and begins the checkpoint's folder."""

    def _save_checkpoint(self, model, trial):
        output = Path(self._get_output_dir(trial=trial))
        with (output / "steps.txt").open("a") as file:
            file.write(f"{self.state.global_step} after {checkpoints(output)}; ")
        (output / f"checkpoint-{self.state.global_step}").mkdir()
        (output / f"checkpoint-{self.state.global_step}" / "ema.txt").write_text("average")
        super()._save_checkpoint(model, trial)


class Within(Trainer):
    """Puts an average beside the checkpoints while the Trainer saves."""

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        average = Path(self._get_output_dir(trial=None), "average")
        average.mkdir(exist_ok=True)
        (average / "step.txt").write_text(str(self.state.global_step))


@pytest.mark.parametrize("kind", [Before, Within])
def test_what_a_subclass_puts_beside_the_checkpoints_lies_there_as_natively(tmp_path, kind):
    def runs(folder, *callbacks):
        trainer(folder, *callbacks, kind=kind, max_steps=4).train()
        texts = [*folder.glob("*.txt"), *folder.glob("*/*.txt")]
        return names(folder), {str(file.relative_to(folder)): file.read_text() for file in texts}

    assert runs(tmp_path / "ours", DynaQuantCallback(**EXACT)) == runs(tmp_path / "native")
    for step in (2, 4):
        folder = tmp_path / "ours" / f"checkpoint-{step}"
        assert read_tree(folder)["optimizer"]["state"]
        assert not {"model.safetensors", "optimizer.pt"} & names(folder)


class Retold(Trainer):
    """Has the Trainer's method written out anew, as a recipe that changes one line of it."""

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        self.save_model(str(folder), _internal_call=True)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_rng_state(str(folder))
        self.state.save_to_json(str(folder / "trainer_state.json"))


def test_who_has_the_trainers_save_written_out_leaves_no_native_state(tmp_path):
    trainer(tmp_path, DynaQuantCallback(**EXACT), kind=Retold, max_steps=4).train()
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), kind=Retold, max_steps=6)
    again.train(resume_from_checkpoint=True)
    for step in (2, 4, 6):
        folder = tmp_path / f"checkpoint-{step}"
        assert not {"model.safetensors", "optimizer.pt"} & names(folder)
        assert {"scheduler.pt", "rng_state.pth", "dynaquant.json"} <= names(folder)
