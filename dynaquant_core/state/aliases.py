"""Other names of the same weight: with what wrappers put into names, and of copies such as averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["bare_name", "copies_of"]

#: Modules that DDP, `torch.compile`, FSDP and activation checkpointing put between a module and its name.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

Shape = tuple[int, ...]
Segments = tuple[str, ...]


def bare_name(name: str) -> str:
    """A tensor's dotted name without what wrappers put into it, wherever and however often.

    Example:
        >>> bare_name("_orig_mod.module.fc.weight"), bare_name("model.module")
        ('fc.weight', 'model.module')
    """
    *modules, last = name.split(".")
    return ".".join([*(part for part in modules if part not in WRAPPERS), last])


def copies_of(originals: Iterable[str], shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Which tensors are copies of which, by name: a moving average, a teacher.

    A copy has its original's shape, and its name ends as the original's does behind what all originals begin
    with, which is where the trained model lies.

    Args:
        originals: names of the weights that are trained.
        shapes: of these, and of the tensors to be looked at.

    Returns:
        Name of a copy -> name of its original; no original is a copy.

    Example:
        >>> shapes = {"model.a.weight": (2,), "model.b.weight": (2,), "ema.module.b.weight": (2,)}
        >>> copies_of(["model.a.weight", "model.b.weight"], shapes)
        {'ema.module.b.weight': 'model.b.weight'}
    """
    known = {name: _segments(name) for name in originals if name in shapes}
    place = _place(list(known.values()))
    tails = {(parts[place:], shapes[name]): name for name, parts in reversed(known.items())}
    found = {}
    for name in shapes.keys() - known.keys():
        parts = _segments(name)
        ends = ((parts[start:], shapes[name]) for start in range(len(parts)))
        original = next((tails[end] for end in ends if end in tails), None)
        if original is not None:
            found[name] = original
    return {name: found[name] for name in shapes if name in found}


def _segments(name: str) -> Segments:
    return tuple(bare_name(name).split("."))


def _place(names: list[Segments]) -> int:
    """How many segments all names share; two stay for a tail, or one of a name that has but two.

    A tail of one common word, such as "weight", would make copies of strangers.
    """
    if not names:
        return 0
    shortest = min(map(len, names))
    limit = min(max(shortest - 2, 1), shortest - 1)
    alike = (len(set(column)) == 1 for column in zip(*names, strict=False))
    shared = next((at for at, same in enumerate(alike) if not same), shortest)
    return min(shared, limit)
