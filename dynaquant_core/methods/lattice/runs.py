"""Runs: tensors whose residuals are coded as one stream, because each alone could not pay for its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dynaquant_core.state.spec import TensorSpec

__all__ = ["expanded", "runs_of"]

#: A tensor from this size on is a run by itself; smaller ones are joined until they reach it.
ALONE = 1 << 16


def runs_of(specs: Mapping[str, TensorSpec]) -> list[tuple[str, ...]]:
    """The runs of a checkpoint: a function of its tensors' sizes and order alone.

    Example:
        >>> sizes = {"a": 100_000, "b": 10, "c": 100_000, "d": 20}
        >>> runs_of({name: TensorSpec((size,), "float32") for name, size in sizes.items()})
        [('a',), ('c',), ('b', 'd')]
    """
    large = [(name,) for name, spec in specs.items() if spec.numel >= ALONE]
    small: list[tuple[str, ...]] = []
    members: list[str] = []
    size = 0
    for name, spec in specs.items():
        if spec.numel < ALONE:
            members.append(name)
            size += spec.numel
            if size >= ALONE:
                small.append(tuple(members))
                members, size = [], 0
    return large + small + ([tuple(members)] if members else [])


def expanded(runs: Iterable[tuple[str, ...]], names: Iterable[str]) -> list[tuple[str, ...]]:
    """The runs that hold any of ``names``."""
    wanted = set(names)
    return [run for run in runs if not wanted.isdisjoint(run)]
