"""Two-bit codes by a device's own kernels, which Triton's interpreter runs here: the bits of the CPU."""

from __future__ import annotations

import pytest
import torch

from dynaquant_core import device_jit
from dynaquant_core.comm import two_bit
from tests.triton_here import interpret

SPECIAL = [0.0, -0.0, 0.5, -0.5, 0.25, -0.25, 1e-40, 3e38, -3e38, torch.inf, -torch.inf, torch.nan]

#: What the interpreter's numpy says of values that are not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def gradients(count, dtype):
    draw = torch.Generator().manual_seed(count)
    values = torch.randn(4, count, generator=draw)
    special = torch.tensor(SPECIAL)[:count]
    values[1, : special.numel()] = special
    values[2, : special.numel()] = special
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 16, 17, 5001])
@pytest.mark.parametrize("limits", [(0.5, 0.5), (0.1, 0.3)])
def test_codes_residuals_and_sums_are_those_of_the_cpu(monkeypatch, dtype, count, limits):
    interpret(monkeypatch)
    found = {}
    for kind in ("device", "cpu"):
        if kind == "cpu":
            monkeypatch.setattr(device_jit, "compiles", lambda device: False)
        residual = torch.zeros(count)
        sent = [two_bit.encode(residual, gradient, *limits) for gradient in gradients(count, dtype)]
        gathered = torch.stack(sent)
        total = two_bit.decode_sum(gathered, count, *limits, divisor=3.0)
        some = two_bit.decode_sum(gathered[::2], count, *limits)
        found[kind] = residual, gathered, total, some
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_part_of_a_bucket_is_coded_in_its_place(monkeypatch):
    interpret(monkeypatch)
    residual, gradient = torch.zeros(100), torch.ones(100)
    two_bit.encode(residual[10:30], gradient[10:30], 0.5, 0.5)
    assert residual.nonzero().view(-1).tolist() == list(range(10, 30))


def test_rows_with_gaps_are_read_as_on_the_cpu(monkeypatch):
    gathered = torch.randint(256, (8, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).t()
    wanted = two_bit.decode_sum(gathered, 32, 0.5, 0.5)
    interpret(monkeypatch)
    found = two_bit.decode_sum(gathered, 32, 0.5, 0.5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
