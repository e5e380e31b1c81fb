"""Room for large tensors: torch's in all that a user sees, private, and no larger than it says."""

import io
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from dynaquant_core.quantize.flat import host_view
from dynaquant_core.state import TensorSpec, copied_together, empty_tensor, pages, words_of
from dynaquant_core.state.pages import LARGE

LARGE_SPECS = [TensorSpec((LARGE // 4,), "float32"), TensorSpec((3, LARGE // 2 + 5), "bfloat16")]


@pytest.mark.parametrize("spec", [TensorSpec((0, 3), "float32"), TensorSpec((7,), "float16"), *LARGE_SPECS])
def test_a_tensor_has_its_shape_and_owns_its_own_bytes_alone(spec):
    tensor = empty_tensor(spec)
    assert TensorSpec.of(tensor) == spec
    assert tensor.is_contiguous()
    assert tensor.untyped_storage().nbytes() == spec.nbytes
    tensor.fill_(1.5).mul_(2)
    assert (tensor == 3).all()
    file = io.BytesIO()
    torch.save(tensor, file)
    assert len(file.getvalue()) < spec.nbytes + 4096
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True), tensor)


@pytest.mark.parametrize("spec", LARGE_SPECS)
def test_a_tensor_can_be_resized_as_torchs_own(spec):
    """Sharded training takes a storage away, and gives it back."""
    tensor = empty_tensor(spec).fill_(1)
    words_of(tensor)
    host_view(tensor.view(-1))
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(spec.nbytes)
    tensor.fill_(2).resize_(5, 7)
    assert (tensor == 2).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mappings are read from /proc")
def test_a_large_tensor_lies_in_memory_of_which_huge_pages_are_asked():
    tensor = empty_tensor(TensorSpec((64 << 20,), "uint8"))
    advised, inside = False, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            inside = begin <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= end
        elif inside and line.startswith("VmFlags:"):
            advised = "hg" in line.split()
    assert advised


def test_two_tensors_share_nothing_and_outlive_each_other():
    first, second = empty_tensor(LARGE_SPECS[0]).fill_(1), empty_tensor(LARGE_SPECS[0]).fill_(2)
    view = first[5:]
    del first
    assert (view == 1).all()
    assert (second == 2).all()


def test_a_forked_child_writes_into_a_copy():
    """As with memory of malloc: a data loader's workers must not write into the model."""
    tensor = empty_tensor(LARGE_SPECS[0]).fill_(1)
    child = os.fork()
    if child == 0:
        tensor.numpy()[:] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert (tensor == 1).all()


def test_many_rooms_leave_mappings_for_others(monkeypatch):
    """They are counted, and forgotten with their tensors: the system bounds a process's mappings."""
    monkeypatch.setattr(pages, "MOST", len(pages._rooms) + 1)
    large = {"w": torch.ones(LARGE)}
    first = copied_together(large)
    held = len(pages._rooms)
    assert len([copied_together(large) for _ in range(3)]) == 3
    assert len(pages._rooms) == held
    del first
    assert len(pages._rooms) == held - 1


def test_it_trains():
    weight = torch.nn.Parameter(empty_tensor(TensorSpec((1024, 1024), "float32")).normal_())
    optimizer = torch.optim.AdamW([weight])
    before = weight.detach().clone()
    weight.square().sum().backward()
    optimizer.step()
    assert not torch.equal(weight, before)


def test_more_than_there_is_is_torchs_own_error():
    with pytest.raises(RuntimeError):
        empty_tensor(TensorSpec((1 << 60,), "uint8"))


def test_copies_in_one_room_are_the_originals_and_nobody_elses():
    rng = torch.Generator().manual_seed(0)
    tensors = {
        "odd": torch.randn(7, 3, generator=rng).to(torch.bfloat16),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "transposed": torch.randn(5, 9, generator=rng).t(),
        "channels last": torch.randn(4, 3, 2, 2, generator=rng).to(memory_format=torch.channels_last),
        "strided": torch.randn(6, 8, generator=rng)[:, ::2],
        "expanded": torch.randn(1, 4, generator=rng).expand(3, 4),
        "codes": torch.arange(300).to(torch.uint8),
        "large": torch.randn(LARGE // 4 + 1, generator=rng),
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    copies = copied_together(tensors)
    assert list(copies) == list(tensors)
    for name in ("transposed", "channels last", "odd"):
        assert copies[name].stride() == tensors[name].stride()
    for name, copy in copies.items():
        assert copy.dtype == tensors[name].dtype
        assert torch.equal(copy, before[name])
        copy.zero_()
    assert all(torch.equal(tensors[name], value) for name, value in before.items())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_copies_of_many_small_tensors_go_back_to_the_system():
    """As malloc has it they would stay: each is below the size from which it gives memory back."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    tensors = {str(number): torch.ones(1 << 14) for number in range(1024)}  # 64 MiB
    before = resident()
    copies = copied_together(tensors)
    while_held = resident()
    del copies
    assert while_held - before > 56 << 20
    assert resident() - before < 8 << 20
