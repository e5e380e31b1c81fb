"""The three parts of a checkpoint: which tensors go where, and what a reader holds of each.

"weights": what the chosen method owns and accepts.  "moments": the optimizer's moments, by the moments
policy.  "exact": everything else: the model's buffers, tensors of two values (masks), different ones that
share memory, those in memory that cannot be written, and whatever a pattern of ``exact=`` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.methods.base import Merging, Method, Reference, TakesVectors
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.moments import moments_method, stay_exact
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.state import (
    Leaf,
    Owned,
    Role,
    TensorSpec,
    Tree,
    assign_roles,
    is_two_valued,
    owned_by,
)
from dynaquant_core.store.covering import covers_leaf
from dynaquant_core.store.meta import PARTS, BaseLink, PartMeta
from dynaquant_core.store.partial import patterns_of
from dynaquant_core.threads import map_threads

__all__ = ["Base", "Division", "HeldPart", "Known", "Settings", "config_data", "divide", "written_by"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a store writes each part.

    Args:
        weights: the chosen method.
        moments: the policy for optimizer moments, which follows the method protocol too.
        exact: name patterns kept bit for bit.
        named: whether the method was asked for; else what was stored before may have another.
    """

    weights: Method
    moments: Method
    exact: tuple[str, ...]
    named: bool = True

    @classmethod
    def of(cls, method: Any, moments: str, exact: str | Sequence[str]) -> Settings:
        """Validates what the user gave; raises ConfigError or UnknownMethodError."""
        return cls(
            resolve_method(method),
            moments_method(moments),
            patterns_of("exact", exact),
            named=method is not None,
        )

    def after(self, written: PartMeta | None) -> Settings:
        """The settings of a save that goes on from a checkpoint: its method, unless one was asked for.

        It merges as many links as were merged there.

        Args:
            written: how that checkpoint's weights were or would have been written; None: nobody says.

        Raises:
            UnknownMethodError: its method is not installed.
        """
        if self.named or written is None:
            return self
        if (self.weights.name, self.weights.options()) == (written.method, written.options):
            return self
        weights = resolve_method(written.spec())
        if isinstance(weights, Merging) and weights.super_step != written.super_step:
            weights.super_step = written.super_step
        return replace(self, weights=weights)


@dataclass(frozen=True, slots=True)
class Division:
    """A state's tensors by part.

    Args:
        tensors: part -> name -> tensor, in the order of the tree; parts without tensors are absent.
        roles: name -> role.
        methods: part -> the method that writes it.
        refused: names of matrices and larger that the method owns by role and does not take (not finite,
            too small, of another dtype); they are in "exact".
        owned: what an optimizer holds of each weight that it trains.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    roles: Mapping[str, Role]
    methods: Mapping[str, Method]
    refused: tuple[str, ...]
    owned: Mapping[str, Owned] = field(default_factory=dict)

    def part_of(self) -> dict[str, str]:
        """Name -> part."""
        return {name: part for part, tensors in self.tensors.items() for name in tensors}


@dataclass(frozen=True, slots=True)
class Known:
    """What a run knows of its state's tensors, beyond what their names say.

    Args:
        kept: names of tensors that stay exact: the model's buffers, what stands beside its own tensors,
            running statistics, scales of codes, different tensors that share memory, and those in memory
            that cannot be written.
        frozen: names of weights that are not trained.
        parameters: the model's, by name.
        optimizers: whose tensors are in the state.
    """

    kept: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    optimizers: Sequence[Optimizer] = ()


def divide(tree: Tree, settings: Settings, method: Method, known: Known) -> Division:
    """Gives each tensor of a tree its part.

    Args:
        tree: a whole state.
        settings: of the store.
        method: writes the weights.
        known: beyond the tree.
    """
    roles = assign_roles(tree.leaves)
    methods = {"weights": method, "moments": settings.moments, "exact": Exact()}
    found: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    refused: list[str] = []
    owned = owned_by(
        tree.leaves,
        [name for name, role in roles.items() if role == "weight"],
        optimizers=known.optimizers,
        parameters=known.parameters,
        untrained=known.kept | known.frozen,
    )
    whole = stay_exact(settings.moments, tree.leaves)
    vectors = {part: each for part, each in methods.items() if isinstance(each, TakesVectors)}

    def owner_of(leaf: Leaf) -> str | None:
        if leaf.source == "data" or leaf.name in known.kept or covers_leaf(tree, leaf, settings.exact):
            return None
        owner = _owner(roles[leaf.name], method, settings)
        return None if owner == "moments" and leaf.name in whole else owner

    def part_of(leaf: Leaf) -> str:
        """Whether a tensor is taken may need a look at every value."""
        owner = owner_of(leaf)
        if owner is None:
            return "exact"
        if roles[leaf.name] == "weight" and is_two_valued(leaf.tensor):
            return "exact"
        if leaf.tensor.dim() == 1 and leaf.name in owned and owner in vectors:
            takes = vectors[owner].accepts_vector(leaf.tensor)
        else:
            takes = methods[owner].accepts(leaf.tensor)
        return owner if takes else "exact"

    for leaf, part in zip(tree.leaves, map_threads(part_of, tree.leaves), strict=True):
        if part == "exact" and leaf.tensor.dim() > 1 and owner_of(leaf) == "weights":
            refused.append(leaf.name)
        found[part][leaf.name] = leaf.tensor
    tensors = {part: members for part, members in found.items() if members}
    return Division(tensors, roles, methods, tuple(refused), owned)


def _owner(role: str, method: Method, settings: Settings) -> str | None:
    """The part whose method takes tensors of a role: the weights' method first."""
    if role in method.owns:
        return "weights"
    return "moments" if role in settings.moments.owns and role == "moment" else None


@dataclass(frozen=True, slots=True)
class HeldPart:
    """What a reader holds of one part after a checkpoint, and how the part was written."""

    written: PartMeta
    specs: Mapping[str, TensorSpec]
    reference: Reference


@dataclass(frozen=True, slots=True)
class Base:
    """What the next delta may be written against.

    Args:
        link: the checkpoint, as a delta names it.
        depth: deltas between it and its key; 0 for a key.
        parts: what a reader of it holds.
        key_bytes: stored bytes of the weights in the chain's key.
        newest_bytes: the same of the chain's newest checkpoint.
        spared: stored bytes of exact tensors that a key takes and a delta does not, going by this chain: what
            did not change costs a delta nothing.
        files: (path, identity) of every file of the chain when it was verified.
    """

    link: BaseLink
    depth: int
    parts: Mapping[str, HeldPart]
    key_bytes: int
    newest_bytes: int
    spared: int = 0
    files: tuple[tuple[Any, tuple[int, int, int]], ...] = ()

    def fits(self, division: Division) -> bool:
        """Whether a delta can be written against this base: it has the same weights.

        A part that does not fit (a counter came, a list became longer) is then written to stand alone.
        """
        if "weights" in self.parts or "weights" in division.tensors:
            return self.reference("weights", division) is not None
        return any(self.reference(part, division) is not None for part in division.tensors)

    def reference(self, part: str, division: Division) -> Reference | None:
        """What a reader holds of a part whose tensors, specs, method and options are the same; else None."""
        held = self.parts.get(part)
        return held.reference if held is not None and self._part_fits(held, part, division) else None

    def _part_fits(self, held: HeldPart, part: str, division: Division) -> bool:
        if part not in division.tensors:
            return False
        method = division.methods[part]
        specs = {name: TensorSpec.of(tensor) for name, tensor in division.tensors[part].items()}
        same_method = held.written.method == method.name and held.written.options == method.options()
        return same_method and list(held.specs.items()) == list(specs.items())


def written_by(method: Method, config: Any) -> PartMeta:
    """What a checkpoint says of a part that a method has written at one point."""
    links = method.super_step if isinstance(method, Merging) else 0
    return PartMeta(method.name, method.options(), config_data(config), links)


def config_data(config: Any) -> dict[str, Any]:
    """A config as JSON-ready data."""
    as_dict = getattr(config, "as_dict", None)
    return dict(as_dict() if as_dict else config or {})
