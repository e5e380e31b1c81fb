"""Checkpoints that other people's training made: a fixed configuration, no model, no gradients."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dynaquant_core as dq
from tests.data import data_root

CONFIG = dq.Config(bins=16, prune=0.1, protect=0.005)


def native(path: Path) -> dict:
    """A foreign checkpoint; NumPy scalars are the only types allowed beside torch's own."""
    plain = [np.dtype, np.ndarray, *{type(np.dtype(kind)) for kind in ("f8", "f4", "i8")}]
    arrays = [np._core.multiarray.scalar, np._core.multiarray._reconstruct]
    with torch.serialization.safe_globals([*plain, *arrays]):
        return torch.load(path, weights_only=True, map_location="cpu")


def from_zip(path: Path, member: str, folder: Path) -> dict:
    with zipfile.ZipFile(path) as archive:
        return native(Path(archive.extract(member, folder)))


def series(root: Path, folder: Path) -> dict[str, list[dict]]:
    """Every series of states in the data folder, by name; single states are saved twice more with a nudge."""
    weights = root / "weights"
    found = {
        "tbot": [
            native(root / f"series_tbot/checkpoint_epoch_{5 * k}.pt")["model_state_dict"] for k in range(1, 9)
        ]
    }
    for name in ("resnet20-12fca82f", "resnet32-d509ac18"):
        found[name] = nudged(native(weights / f"{name}.th")["state_dict"])
    found["silero"] = nudged(load_file(weights / "silero_vad_16k.safetensors"))
    found["ant"] = nudged(from_zip(weights / "ppo_Ant-v3_1_Ant-v3.zip", "policy.pth", folder))
    return found


def nudged(state: dict) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    states = [state]
    for _ in range(2):
        last = states[-1]
        states.append(
            {
                name: tensor + 0.02 * tensor.std() * torch.randn(tensor.shape, generator=generator)
                if tensor.is_floating_point() and tensor.numel() > 1
                else tensor
                for name, tensor in last.items()
            }
        )
    return states


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return series(data_root(), tmp_path_factory.mktemp("zip"))


@pytest.mark.parametrize("name", ["tbot", "resnet20-12fca82f", "resnet32-d509ac18", "silero", "ant"])
def test_a_fixed_configuration_serves_checkpoints_from_elsewhere(states, name, tmp_path):
    store = dq.CheckpointStore(tmp_path / "store")
    for step, state in enumerate(states[name]):
        info = store.save(step, state, config=CONFIG)
        parameters = sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())
        if parameters >= 300_000:
            assert info.ratio >= 8, info.ratio
        read = dq.CheckpointStore(tmp_path / "store").load(step)
        assert list(read) == list(state)
        for key, tensor in state.items():
            assert (read[key].dtype, read[key].shape) == (tensor.dtype, tensor.shape)
            if tensor.is_floating_point() and tensor.numel() > 4096:
                error = torch.linalg.vector_norm((read[key] - tensor).double())
                assert error <= 0.25 * torch.linalg.vector_norm(tensor.double()), (key, float(error))
            elif not tensor.is_floating_point():
                assert torch.equal(read[key], tensor)
