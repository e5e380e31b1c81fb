"""The table of policies for optimizer moments: what ``moments=`` accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dynaquant_core.config import nearest, require
from dynaquant_core.methods.base import Method
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.moments.compact import Compact
from dynaquant_core.methods.moments.eight_bit import LogBlocks
from dynaquant_core.methods.moments.minimal import Minimal
from dynaquant_core.methods.moments.none import Dropped
from dynaquant_core.methods.moments.second import SecondOnly
from dynaquant_core.methods.moments.sparse import Sparse
from dynaquant_core.state import Leaf, centred_names

__all__ = ["MOMENTS", "least_bytes", "moments_method", "stay_exact"]

#: ``moments=`` -> the method that writes them, unless the weights' method owns moments itself; from the one
#: that keeps most to the one that keeps least.
MOMENTS: Final[Mapping[str, Callable[[], Method]]] = {
    "exact": Exact,
    "8bit": LogBlocks,
    "compact": Compact,
    "minimal": Minimal,
    "sparse": Sparse,
    "second": SecondOnly,
    "none": Dropped,
}

#: Bytes a value that a policy writes at least, about, where values change.
LEAST_BYTES: Final = {
    "8bit": 0.7,
    "compact": 0.2,
    "minimal": 0.02,
    "sparse": 0.005,
    "second": 0.0,
    "none": 0.0,
}


def moments_method(name: str) -> Method:
    """The method of a moments policy.

    Raises:
        ConfigError: there is no policy of that name; the nearest one is named.

    Example:
        >>> moments_method("8bit").name
        '8bit'
    """
    good = isinstance(name, str) and name in MOMENTS
    require(good, f"store: there are no moments {name!r}; {nearest(name, MOMENTS)}")
    return MOMENTS[name]()


def stay_exact(policy: Method, leaves: Iterable[Leaf]) -> frozenset[str]:
    """Names of the moments that a policy leaves to the exact part for what lies beside them.

    ``"8bit"`` promises each value within 5 to 9%, which says nothing of the difference that centred RMSprop
    takes the root of.  The five smaller ones give zeros in place of what is taken.

    Args:
        policy: what `moments_method` returned.
        leaves: of a whole state.

    Example:
        >>> import torch
        >>> from dynaquant_core.state import flatten
        >>> entry = {"square_avg": torch.ones(4), "grad_avg": torch.ones(4)}
        >>> leaves = flatten({"state": {0: entry}, "param_groups": []}).leaves
        >>> [len(stay_exact(moments_method(name), leaves)) for name in ("8bit", "minimal")]
        [2, 0]
    """
    return centred_names(leaves) if isinstance(policy, LogBlocks) else frozenset()


def least_bytes(method: str) -> float:
    """Bytes a value that a moments part takes at least, for an estimate; as of 8 bits where not known.

    Example:
        >>> least_bytes("none")
        0.0
    """
    return LEAST_BYTES.get(method, LEAST_BYTES["8bit"])
