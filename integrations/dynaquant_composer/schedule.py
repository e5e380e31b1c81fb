"""How many batches are left until the next save, from Composer's own schedule."""

from __future__ import annotations

import math
from typing import Any

from composer.core import State, Time, TimeUnit

__all__ = ["batches_left"]


def batches_left(interval: Time[Any] | None, state: State) -> int | None:
    """Batches until the next save that a schedule or the end of training brings, at least 1.

    Exact for intervals in batches, epochs and shares of a duration in these; estimated from the batches so
    far for samples and tokens; unknown for times on the clock, iterations and functions.

    Args:
        interval: of `CheckpointSaver`; None: unknown.
        state: at the start of a batch.

    Returns:
        None where nobody knows.
    """
    ends = [_until(state.max_duration, state), _until_interval(interval, state)]
    return min((left for left in ends if left is not None), default=None)


def _until_interval(interval: Time[Any] | None, state: State) -> int | None:
    if interval is None or interval.value <= 0:
        return None
    if interval.unit == TimeUnit.DURATION:
        return _until_share(interval.value, state)
    if interval.unit == TimeUnit.EPOCH:
        passed = int(state.timestamp.epoch)
        return _until(Time(passed + int(interval) - passed % int(interval), TimeUnit.EPOCH), state)
    if interval.unit in (TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN):
        passed = int(state.timestamp.get(interval.unit))
        return _until(Time(passed + int(interval) - passed % int(interval), interval.unit), state)
    return None


def _until_share(share: float, state: State) -> int | None:
    """Until the next multiple of a share of the training's duration, as Composer rounds it."""
    duration, length = state.max_duration, state.dataloader_len
    if duration is None or duration.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
        return None
    if duration.unit == TimeUnit.EPOCH and length is None:
        return None
    batches = duration.value if duration.unit == TimeUnit.BATCH else duration.value * length.value
    every = math.ceil(batches * share)
    return int(every - int(state.timestamp.batch) % every)


def _until(time: Time[Any] | None, state: State) -> int | None:
    """Batches until a moment of the training."""
    if time is None:
        return None
    now = state.timestamp
    if time.unit == TimeUnit.BATCH:
        return max(1, int(time) - int(now.batch))
    if time.unit == TimeUnit.EPOCH:
        if state.dataloader_len is None:
            return None
        whole = (int(time) - int(now.epoch)) * int(state.dataloader_len)
        return max(1, whole - int(now.batch_in_epoch))
    if time.unit in (TimeUnit.SAMPLE, TimeUnit.TOKEN) and int(now.get(time.unit)) > 0:
        a_batch = int(now.get(time.unit)) / int(now.batch)
        return max(1, math.ceil((int(time) - int(now.get(time.unit))) / a_batch))
    return None
