"""Data parallel, with ranks that are processes of their own."""

import json
import os
from pathlib import Path

import lightning
import lightning.pytorch
import pytest

from tests.integrations.lightning.kit import fit
from tests.integrations.pages import shown
from tests.programs import run

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'integrations'}",
    "OMP_NUM_THREADS": "1",
}


def said_by(module, folder, *how):
    """The last line of a job of two ranks."""
    words = ["-m", f"tests.integrations.lightning.{module}", folder, *how]
    done = run(words, env=ENVIRONMENT, needs=["lightning.pytorch"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_ranks(tmp_path):
    said = said_by("pair", tmp_path)
    failure = said.pop("failure")
    assert "rank 1" in failure
    assert "the second rank has had enough" in failure
    assert said.pop("evaluations") > 0
    assert said == {
        "same": True,
        "names": ["epoch=2-step=30.ckpt", "epoch=3-step=40.ckpt", "last.ckpt"],
        "met": True,
        "kind": "delta",
        "step": 40,
        "resumed": True,
        "named": True,
        "found": ["best.ckpt", "True"] * 2 + ["last.ckpt", "True"],
        "read": {"read-0": ["3", "6"], "read-1": ["3", "6"]},
        "full": {"raised-0": "SaveError", "raised-1": "SaveError"},
    }


def test_gradients_may_travel_in_two_bits(tmp_path):
    said = said_by("two_bit_pair", tmp_path)
    ((first, second), dense) = said["two_bit"], said["dense"]
    assert first["digest"] == second["digest"] != dense[0]["digest"]
    assert [rank["sent"] for rank in (first, second)] == [said["step"]] * 2 == [40, 40]
    assert max(first["loss"], second["loss"]) < 0.7  # of 2.3 before the first step


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_fabric_searches_on_one_rank_with_a_module_that_broadcasts_its_buffers(tmp_path, how):
    """Its forward pass would wait for ranks that are in ``fabric.save`` already.

    What was saved last is loaded by every rank at once, from a slow disk.
    """
    said = said_by("fabric_pair", tmp_path, how)
    assert said.pop("evaluations") > 2
    assert said == {"steps": [4, 4], "broadcasts": [True]}


def test_the_same_script_trains_in_one_process_whose_model_is_in_no_ddp(tmp_path):
    packs = shown("two-bit.md", "class TwoBits(lightning", lightning=lightning)["TwoBits"]()
    assert fit(tmp_path, packs, epochs=1).global_step == 20
