"""State: a training state as a tree of named tensors with roles, and back.

`tree` takes a state apart into a JSON skeleton and leaves, `rebuild` puts it together, `roles` says what each
leaf is for, `spec` and `raw` know shapes, dtypes and bits, `pages` makes room.  Nothing here knows files or
methods.
"""

from __future__ import annotations

from dynaquant_core.state.affine import affine_names
from dynaquant_core.state.aliases import bare_name, copies_of
from dynaquant_core.state.digest import digest_of
from dynaquant_core.state.given import given_names
from dynaquant_core.state.leaves import Leaf
from dynaquant_core.state.limits import memory_limit
from dynaquant_core.state.memory import address_of, overlapping, read_only
from dynaquant_core.state.owners import Owned, owned_by
from dynaquant_core.state.pages import copied_together, empty_tensor
from dynaquant_core.state.raw import bytes_of, copied, empty_words, tensor_of, words_of
from dynaquant_core.state.rebuild import leaf_names, unflatten, unpack
from dynaquant_core.state.roles import (
    Kind,
    Role,
    assign_roles,
    centred_names,
    fits_float32,
    has_range,
    is_finite,
    is_quantisable,
    is_two_valued,
    matches,
    moment_kind,
    never_falls,
)
from dynaquant_core.state.spec import TensorSpec, dtype_name, dtype_of
from dynaquant_core.state.tree import Tree, flatten, pack

__all__ = [
    "Kind",
    "Leaf",
    "Owned",
    "Role",
    "TensorSpec",
    "Tree",
    "address_of",
    "affine_names",
    "assign_roles",
    "bare_name",
    "bytes_of",
    "centred_names",
    "copied",
    "copied_together",
    "copies_of",
    "digest_of",
    "dtype_name",
    "dtype_of",
    "empty_tensor",
    "empty_words",
    "fits_float32",
    "flatten",
    "given_names",
    "has_range",
    "is_finite",
    "is_quantisable",
    "is_two_valued",
    "leaf_names",
    "matches",
    "memory_limit",
    "moment_kind",
    "never_falls",
    "overlapping",
    "owned_by",
    "pack",
    "read_only",
    "tensor_of",
    "unflatten",
    "unpack",
    "words_of",
]
