"""A resumed run goes on from what it read, whatever its optimizer keeps and wherever that lies."""

import json

import pytest
import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.nn import functional

from dynaquant_core.plugins import MARKER, describe
from dynaquant_lightning import DynaQuantCallback, DynaQuantCheckpointIO
from dynaquant_lightning.tree import KIND
from tests.integrations.lightning.kit import Digits, bits, digits, fit, saves

#: None of them keeps a tensor that goes by the name of a moment.
OPTIMIZERS = {
    "rprop": lambda weights: torch.optim.Rprop(weights, lr=1e-3),
    "asgd": lambda weights: torch.optim.ASGD(weights, lr=1e-2),
    "lbfgs": lambda weights: torch.optim.LBFGS(weights, lr=0.1, max_iter=2),
}


class Frozen(Digits):
    """Its first layer is never trained."""

    def __init__(self, optimizer):
        super().__init__(width=96)
        self.make = OPTIMIZERS[optimizer]
        self.net[0].requires_grad_(False)

    def configure_optimizers(self):
        return self.make([weight for weight in self.parameters() if weight.requires_grad])

    def on_train_start(self):
        self.restored = bits(self.net[0].state_dict())


def lives(folder, name, method="dynaquant", count=4, forget=lambda: None):
    """Starts again and again: (the frozen layer at each start, what each start saved first)."""
    layers, firsts = [], []
    for life in range(count):
        model, start = Frozen(name), "last" if life else None
        ours = DynaQuantCallback(threshold=0.05, method=None if life else method)
        fit(folder, saves(folder, filename="{epoch}"), ours, model=model, epochs=life + 1, ckpt_path=start)
        layers.append(model.restored)
        firsts.append(describe(folder / f"epoch={life}.ckpt"))
        forget()
    return layers, firsts


def require_one_line(layers, firsts, method="dynaquant"):
    """The base, the method and what a restore found once are those of every later start."""
    assert [info.kind for info in firsts] == ["key", *["delta"] * (len(firsts) - 1)]
    assert {info.method for info in firsts} == {method}
    assert all(layer == layers[1] for layer in layers[2:])


@pytest.mark.parametrize("method", ["dynaquant", "lattice"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whatever_the_optimizer_keeps_the_next_save_is_a_delta(tmp_path, name, method):
    require_one_line(*lives(tmp_path, name, method), method)


def test_so_it_is_after_a_folder_that_does_not_say_what_it_holds(tmp_path):
    def forget():
        for marker in tmp_path.glob(f"*/{MARKER}"):
            told = json.loads(marker.read_text())
            told["note"].pop(KIND, None)
            marker.write_text(json.dumps(told))

    require_one_line(*lives(tmp_path, "rprop", count=3, forget=forget))


def test_fabric_s_optimizers_may_lie_deeper(tmp_path):
    images, labels = digits()[0][:256]
    layers, firsts = [], []
    for life in range(4):
        seed_everything(0, verbose=False)
        io = DynaQuantCheckpointIO(threshold=0.05, method=None if life else "dynaquant")
        fabric = Fabric(accelerator="cpu", devices=1, plugins=[io])
        net = nn.Sequential(nn.Linear(64, 96).requires_grad_(False), nn.ReLU(), nn.Linear(96, 10))
        model, optimizer = fabric.setup(net, torch.optim.AdamW(net[2].parameters(), lr=1e-2))
        if life:
            state = fabric.load(tmp_path / f"{life}.ckpt")
            net.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizers"]["main"])
        layers.append(bits(net[0].state_dict()))
        for _ in range(4):
            optimizer.zero_grad()
            fabric.backward(functional.cross_entropy(model(images), labels))
            optimizer.step()
        deep = {"main": optimizer.state_dict()}
        fabric.save(
            tmp_path / f"{life + 1}.ckpt", {"model": net.state_dict(), "step": life, "optimizers": deep}
        )
        io.wait()
        firsts.append(describe(tmp_path / f"{life + 1}.ckpt"))
    require_one_line(layers, firsts)
