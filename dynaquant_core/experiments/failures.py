"""When the training process is killed: in the middle of checkpoint intervals, spread over the run."""

from __future__ import annotations

from dynaquant_core.errors import ConfigError

__all__ = ["failure_steps"]


def failure_steps(failures: int | dict[str, list[int]], steps: int, interval: int) -> list[int]:
    """Steps after which the process is killed, ascending.

    ``k`` failures hit the mid-intervals nearest to ``i * steps / (k + 1)`` (the earlier of two equally
    near), never before the first checkpoint, one kill a mid-interval: where it is taken the next free one
    after it is used, and before it once there is none after.

    Args:
        failures: their number k, or ``{"at": [steps]}`` to name them.
        steps: optimizer steps of the run.
        interval: steps between checkpoints.

    Raises:
        ConfigError: k is not below the number of checkpoints, or a named step lies outside the run.

    Example:
        >>> failure_steps(2, steps=300, interval=30)
        [105, 195]
        >>> failure_steps({"at": [40, 35]}, steps=300, interval=30)
        [35, 40]
    """
    if isinstance(failures, dict):
        return _named(failures["at"], steps, interval)
    middles = range(interval + interval // 2, steps, interval)
    if failures > len(middles):
        raise ConfigError(
            f"failures: {failures} kills, each in the middle of an interval of its own after the first "
            f"checkpoint, but {steps} steps with one every {interval} have {len(middles)} such places; lower "
            f"failures or checkpoint_every."
        )
    taken: list[int] = []
    for i in range(1, failures + 1):
        taken.append(_nearest_free(i * steps / (failures + 1), middles, taken))
    return sorted(taken)


def _nearest_free(target: float, middles: range, taken: list[int]) -> int:
    about = int((target - middles.start) / middles.step)  # within one of it: a run may have very many
    place = min(
        range(max(0, about - 1), min(len(middles), about + 3)), key=lambda place: abs(middles[place] - target)
    )
    after = (step for step in middles[place:] if step not in taken)
    before = (step for step in reversed(middles) if step not in taken)
    return next(after, None) or next(before)


def _named(at: list[int], steps: int, interval: int) -> list[int]:
    outside = [step for step in at if not interval <= step < steps]
    if outside:
        raise ConfigError(
            f"failures: step {outside[0]} is outside the run; a kill comes after the first checkpoint "
            f"(step {interval}) and before the last step ({steps})."
        )
    return sorted(set(at))
