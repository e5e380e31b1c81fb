"""Quality, and how much worse a candidate is than the uncompressed model.

Degradation is relative and positive when worse: (q - ref)/|ref| for a metric to minimise, (ref - q)/|ref|
for one to maximise (paper sec. 5.2).  Where evaluate gives one value a batch, candidate and reference saw the
same batches, so the noise is that of their paired differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dynaquant_core.config import require_choice, require_number
from dynaquant_core.errors import EvaluationError

__all__ = ["Degradation", "Goal", "Lost", "Mode", "Quality", "degradation"]

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Lost:
    """What a candidate would lose of the training's movement (ours; docs/restoring.md).

    Args:
        stale: share of the movement that is not there.
        noise: what is there beside it, squared, over the squared movement; ``inf`` where nothing has moved
            and something else is there.
    """

    stale: float
    noise: float

    def report(self) -> dict[str, dict[str, float]]:
        """For the file, where there is a movement to have a share of."""
        finite = math.isfinite(self.stale) and math.isfinite(self.noise)
        return {"movement_lost": asdict(self)} if finite else {}


@dataclass(frozen=True, slots=True)
class Quality:
    """What one evaluation gave, in the metric's own unit.

    Args:
        values: one value for all, or one a batch in a fixed order; never empty.
        lost: of the movement, by what was evaluated; None: not known.

    Raises:
        EvaluationError: there is no value.

    Example:
        >>> Quality((2.0, 4.0)).mean
        3.0
    """

    values: tuple[float, ...]
    lost: Lost | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise EvaluationError("evaluate returned no value; expected a number, or one number a batch.")

    @classmethod
    def of(cls, result: object) -> Quality:
        """Takes what a user's evaluate returned: a number, or a list, array or tensor of one a batch.

        Raises:
            EvaluationError: ``result`` is something else, or a number beyond all floats; says what it was.

        Example:
            >>> Quality.of(1).values, Quality.of([1.5, 2]).values
            ((1.0,), (1.5, 2.0))
        """
        listed = _plain(result)
        entries = [_plain(entry) for entry in listed] if _is_sequence(listed) else [listed]
        if not all(isinstance(entry, (int, float)) for entry in entries):
            raise EvaluationError(
                f"evaluate returned {type(result).__name__} {result!r:.80}; "
                "expected a number, or one number a batch (a list or a 1-D array)."
            )
        try:
            return cls(tuple(float(entry) for entry in entries))
        except OverflowError:
            raise EvaluationError(
                f"evaluate returned a whole number that no float can hold ({type(result).__name__}); "
                "return floats, such as the mean loss."
            ) from None

    @property
    def mean(self) -> float:
        """Mean over the batches."""
        return _mean(self.values) if self.finite else math.nan

    @property
    def finite(self) -> bool:
        """Whether every value is a finite number."""
        return all(map(math.isfinite, self.values))


def _plain(value: Any) -> Any:
    """Python's own numbers and lists for tensors, arrays and their scalars; anything else as it is."""
    if not hasattr(value, "tolist"):
        return value
    try:
        return value.tolist()
    except Exception as error:
        raise EvaluationError(
            f"evaluate returned {type(value).__name__} whose values cannot be read ({type(error).__name__}: "
            f"{error}); expected a number, or one number a batch (a list or a dense 1-D tensor)."
        ) from error


def _mean(values: Sequence[float]) -> float:
    """The mean of finite numbers, also where floats cannot hold their sum; ``nan`` for inf - inf."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)
    except ValueError:
        return math.nan


def _is_sequence(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict))


@dataclass(frozen=True, slots=True)
class Degradation:
    """How much worse than the reference, as a share of it.

    Args:
        mean: positive when worse; ``inf`` where the candidate's quality is not finite.
        se: standard error of ``mean`` from the paired batches; 0 where there is one value only.

    Example:
        >>> Degradation(0.01, 0.002).clearly_below(Degradation(0.011, 0.002))
        False
    """

    mean: float
    se: float = 0.0

    def clearly_below(self, other: Degradation, margin: float = 0.0) -> bool:
        """Whether this one is better by more than ``margin`` and more than either standard error.

        Two candidates closer than their standard error count as equal.
        """
        return other.mean - self.mean > max(margin, self.se, other.se)


def degradation(reference: Quality, quality: Quality, mode: Mode) -> Degradation:
    """Relative degradation of ``quality`` against ``reference``, from paired differences.

    A reference of exactly 0 has no relative scale: worse is then ``inf`` and the rest 0.

    Raises:
        EvaluationError: the reference is not finite, or the two have different numbers of batches.

    Example:
        >>> degradation(Quality((2.0,)), Quality((2.5,)), "min")
        Degradation(mean=0.25, se=0.0)
        >>> degradation(Quality((0.5, 0.7)), Quality((0.5, 0.64)), "max").mean.__round__(9)
        0.05
    """
    if not reference.finite:
        values = reference.values
        odd = [f"{value} in batch {i}" for i, value in enumerate(values) if not math.isfinite(value)]
        where = ", ".join(odd[:4]) if len(values) > 1 else str(values[0])
        more = ", ..." if len(odd) > 4 else ""
        guess = "a batch without labels?" if len(odd) < len(values) else "did the model diverge?"
        raise EvaluationError(
            f"the uncompressed model's quality is not finite: {where}{more}; check evaluate ({guess})."
        )
    count = len(reference.values)
    if len(quality.values) != count:
        raise EvaluationError(
            f"evaluate returned {len(quality.values)} values after {count} for the same model's reference; "
            "it must run the same batches every time."
        )
    if not quality.finite:
        return Degradation(math.inf)
    sign = 1.0 if mode == "min" else -1.0
    worse = [sign * (q - r) for q, r in zip(quality.values, reference.values, strict=True)]
    mean = _mean(worse)
    if math.isnan(mean):  # some batches are infinitely better, some infinitely worse
        return Degradation(math.inf)
    scale = abs(reference.mean)
    if scale == 0.0:
        return Degradation(math.inf if mean > 0 else 0.0)
    if count == 1:
        return Degradation(mean / scale)
    spread = math.hypot(*(w - mean for w in worse))  # whose squares may be beyond all floats
    return Degradation(mean / scale, spread / math.sqrt(count * (count - 1)) / scale)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a candidate has to meet: at most ``threshold`` worse than ``reference``.

    Args:
        reference: the uncompressed model's quality at this step, on the same batches.
        threshold: allowed relative degradation, a share (0.01 = 1%).
        mode: whether the metric is to be minimised ("min") or maximised ("max").

    Raises:
        EvaluationError: the reference is not finite.
        ConfigError: threshold or mode is out of range.

    Example:
        >>> goal = Goal(Quality((2.0,)), 0.01, "min")
        >>> goal.met(goal.judge(Quality((2.01,)))), goal.met(goal.judge(Quality((float("nan"),))))
        (True, False)
    """

    reference: Quality
    threshold: float
    mode: Mode

    def __post_init__(self) -> None:
        require_choice("search", "mode", self.mode, ("min", "max"))
        require_number("search", "threshold", self.threshold, 0.0, math.inf, open_high=True)
        degradation(self.reference, self.reference, self.mode)

    def judge(self, quality: Quality) -> Degradation:
        """Degradation of ``quality`` against the reference; raises EvaluationError as `degradation` does."""
        return degradation(self.reference, quality, self.mode)

    def met(self, found: Degradation) -> bool:
        """The promise: mean degradation on the search batches is at most the threshold."""
        return found.mean <= self.threshold
