"""Which tensors of a state the patterns of ``exact=`` cover, and which patterns cover none."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from dynaquant_core.state import Leaf, Tree, matches

__all__ = ["covers_leaf", "idle_patterns"]


def covers_leaf(tree: Tree, leaf: Leaf, patterns: Iterable[str]) -> bool:
    """Whether a pattern covers a tensor under any of its paths: a tied head has the embedding's as well.

    Example:
        >>> import torch
        >>> from dynaquant_core.state import flatten
        >>> head = torch.zeros(2, 3)
        >>> tree = flatten({"embed": head, "lm_head": head})
        >>> covers_leaf(tree, tree.leaves[0], ["lm_head"]), covers_leaf(tree, tree.leaves[0], ["body"])
        (True, False)
    """
    patterns = tuple(patterns)  # as a rule there are none
    return bool(patterns) and any(matches(path, patterns) for path in tree.paths(leaf))


def idle_patterns(tree: Tree, patterns: Iterable[str]) -> list[str]:
    """A sentence for each pattern that covers nothing in a state: what was meant is not kept bit for bit.

    A state without any tensor covers nothing, and says nothing.

    Example:
        >>> import torch
        >>> from dynaquant_core.state import flatten
        >>> tree = flatten({"model": {"lm_head.weight": torch.zeros(2, 3)}})
        >>> idle_patterns(tree, ["lm_head", "lm_haed"])
        ["exact: 'lm_haed' covers no tensor, so it keeps nothing bit for bit; did you mean 'lm_head'?"]
    """
    idle = [each for each in patterns if not any(covers_leaf(tree, leaf, [each]) for leaf in tree.leaves)]
    if not idle or not tree.leaves:
        return []
    words = {word for leaf in tree.leaves for path in tree.paths(leaf) for word in path.split(".")}
    return [
        f"exact: {each!r} covers no tensor, so it keeps nothing bit for bit; {_hint(each, sorted(words))}"
        for each in idle
    ]


def _hint(pattern: str, words: list[str]) -> str:
    near = get_close_matches(pattern, words, n=1)
    return f"did you mean {near[0]!r}?" if near else "dynaquant show --tensors lists the names."
