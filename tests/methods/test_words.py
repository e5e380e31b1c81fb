"""Beyond the search cube: in bfloat16 tensors stay finite, however near to the end of their dtype."""

from __future__ import annotations

import pytest
import torch

import dynaquant_core as dq


@pytest.mark.parametrize("config", [dq.LatticeConfig(scale="bf16"), dq.Config(bins="bf16")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_largest_weights_do_not_become_infinite(config, dtype, tmp_path):
    weight = torch.randn(40, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    largest = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    weight[0], weight[1] = largest, -largest
    dq.save_file({"weight": weight}, tmp_path / "model.dq", config=config)
    read = dq.load_file(tmp_path / "model.dq")["weight"]
    torch.testing.assert_close(read.double(), weight.double(), rtol=2**-7, atol=0)
