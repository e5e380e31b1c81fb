"""What is given to a model in half precision: finite where it was, as a mask's -1e9."""

import pytest
import torch
from torch import nn

from dynaquant_core.memory import samo
from dynaquant_core.memory.samo.casts import cast_tree


class Attending(nn.Module):
    """Attention that is given its mask, as a padded batch's."""

    def __init__(self):
        super().__init__()
        self.three, self.out = nn.Linear(16, 48), nn.Linear(16, 2)

    def forward(self, inputs, mask):
        asked, keys, values = self.three(inputs).chunk(3, -1)
        return self.out(torch.softmax(asked @ keys.transpose(1, 2) / 4 + mask, -1) @ values)


@pytest.mark.parametrize("least", [-1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mask_that_is_given_stays_finite_and_a_row_of_nothing_else_is_a_number(dtype, least):
    torch.manual_seed(0)
    model = Attending()
    optimizer = torch.optim.AdamW(model.parameters())
    samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    mask = torch.zeros(2, 6, 6)
    mask[1, 4:] = least
    found = model(torch.randn(2, 6, 16), mask=mask)
    assert found.isfinite().all()
    found.square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_comes_in_is_finite_where_it_was_and_as_it_was_elsewhere(dtype):
    largest = torch.finfo(dtype).max
    given = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38, -3.4e38, 0.1])
    found = cast_tree({"one": [given], "wide": given.double()}, dtype)
    for one in (found["one"][0], found["wide"]):
        assert one.dtype == dtype
        expected = [torch.inf, -torch.inf, torch.nan, largest, -largest, float(given[5].to(dtype))]
        assert torch.equal(one.float().nan_to_num(7.0), torch.tensor(expected).nan_to_num(7.0))
    last = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    assert cast_tree(last, dtype).is_contiguous(memory_format=torch.channels_last)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(cast_tree(sparse, dtype).to_dense(), torch.eye(3, dtype=dtype))
    slope = torch.ones(3, requires_grad=True)
    cast_tree(slope, dtype).sum().backward()
    assert slope.grad.tolist() == [1.0, 1.0, 1.0]
