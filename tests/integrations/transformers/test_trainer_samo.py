"""SAMO in the Trainer: what docs/samo.md says of clipping there."""

import pytest
import torch
import transformers

from dynaquant_core.memory import samo
from tests.integrations.pages import shown
from tests.integrations.transformers.kit import gpt, trainer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_callback_of_the_page_clips_all_that_is_stepped(tmp_path, dtype):
    """The Trainer's own clipping sees the gradients of layers that are not compressed, or none."""
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clip = shown("samo.md", "class Clip(transformers", transformers=transformers, torch=torch)["Clip"]()
    clip.handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    before = dict(clip.handle.weights())
    given = {"max_steps": 1, "save_strategy": "no", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    trainer(tmp_path, clip, model=model, optimizers=(optimizer, None), **given).train()
    moved = torch.cat([(one - before[name]).flatten() for name, one in clip.handle.weights()])
    assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-2)
