"""The search over whole numbers that decides how coarse a file may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["coarsest"]

Result = TypeVar("Result")


def coarsest(
    tried: Callable[[int], Result], meets: Callable[[Result], bool], finest: int, top: int, guess: int
) -> tuple[int, Result, int]:
    """The largest whole number whose result meets; the finest where none does.

    The top is tried first, then numbers around the guess in doubling distances until one meets and one does
    not, then the interval between them is halved.  Right where what meets at one number meets at all that are
    smaller; elsewhere it ends at one of the places where meeting ends.

    Args:
        tried: result of a number.
        meets: judges a result.
        finest: smallest number.
        top: largest.
        guess: where to look first; the nearer the fewer are tried.

    Returns:
        The number, its result, and how many were tried.

    Example:
        >>> coarsest(lambda number: number * 10, lambda result: result <= 42, -8, 8, 3)
        (4, 40, 5)
    """
    found: dict[int, tuple[Result, bool]] = {}

    def good(number: int) -> bool:
        if number not in found:
            result = tried(number)
            found[number] = result, meets(result)
        return found[number][1]

    low, high, stride = finest - 1, top, 1  # low meets or lies below all, high does not meet
    place = min(max(guess, finest), top - 1)
    if good(top):
        return top, found[top][0], 1
    while high - low > 1:
        if good(place):
            low = place
        else:
            high = place
        bracketed = low >= finest and high < top
        place = (low + high) // 2 if bracketed else place + stride if low == place else place - stride
        place, stride = min(max(place, low + 1), high - 1), 2 * stride
    number = max(low, finest)
    good(number)
    return number, found[number][0], len(found)
