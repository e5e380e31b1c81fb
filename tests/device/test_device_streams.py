"""A save inside of `torch.cuda.stream` reads what that stream writes, on every thread."""

from __future__ import annotations

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.cuda_streams import chosen_streams
from dynaquant_core.threads import map_threads

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: none in this machine"
)


@needs_cuda
def test_threads_work_on_the_callers_stream(monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", "4")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert chosen_streams() == [side]
        found = map_threads(lambda _: torch.cuda.current_stream(), range(64))
    assert all(stream == side for stream in found)
    assert chosen_streams() == []
    assert all(
        stream == torch.cuda.default_stream()
        for stream in map_threads(lambda _: torch.cuda.current_stream(), range(64))
    )


@needs_cuda
@pytest.mark.parametrize("method", ["lattice", "dynaquant", "exact"])
def test_a_save_waits_for_the_stream_that_still_writes_the_weights(tmp_path, method, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", "4")
    draw = torch.Generator().manual_seed(0)
    start = {str(number): torch.randn(512, 512, generator=draw) for number in range(8)}
    expected = {name: 1 + 2 * tensor for name, tensor in start.items()}
    weights = {name: tensor.cuda() for name, tensor in start.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1 << 29)
        for tensor in weights.values():
            tensor.mul_(2).add_(1)
        dq.save_file(weights, tmp_path / "w.dq", method=method)
    dq.save_file(expected, tmp_path / "usual.dq", method=method)
    found, usual = dq.load_file(tmp_path / "w.dq"), dq.load_file(tmp_path / "usual.dq")
    assert all(torch.equal(found[name], usual[name]) for name in usual)
