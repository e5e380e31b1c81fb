"""CUDA streams of the thread that asks, for threads that work for it.

A new thread begins on each device's default stream, which does not wait for a stream that a loop has chosen
(`torch.cuda.stream`): it could read weights before the step that writes them is through.  On the caller's own
streams its work comes after all that the caller has asked for, and before all that it asks for later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["chosen_streams", "on_streams"]


def chosen_streams() -> list[torch.cuda.Stream]:
    """The calling thread's streams that are not their device's default; none where CUDA is not used.

    Example:
        >>> chosen_streams()
        []
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    current = [torch.cuda.current_stream(number) for number in range(torch.cuda.device_count())]
    return [stream for stream in current if stream != torch.cuda.default_stream(stream.device)]


@contextmanager
def on_streams(streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Has the calling thread work on these streams, each of another device."""
    with ExitStack() as stack:
        device = torch.cuda.current_device() if streams else 0
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        if streams:
            stack.enter_context(torch.cuda.device(device))  # the last stream's is current now
        yield
