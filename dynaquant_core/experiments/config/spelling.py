"""One name and one set of options for a method, however a YAML file spells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.methods.registry import resolve_method

__all__ = ["owns_moments", "resolved"]


def resolved(method: Any) -> tuple[str, dict[str, Any]]:
    """A method's name, and its options as results tell them.

    Options that say nothing to a reader of files, and so are in none, are told as they were given.

    Args:
        method: as in a config: None, a name, or a mapping with a name and options.

    Raises:
        UnknownMethodError, ConfigError: there is no such method, or no such option of it.

    Example:
        >>> resolved(None) == resolved("lattice") == resolved({"name": "lattice"})
        True
        >>> resolved({"name": "lc", "super_step": 4})
        ('lc', {'super_step': 4, 'stages': 'EPH'})
    """
    found = resolve_method(method)
    given = {key: method[key] for key in method if key != "name"} if isinstance(method, Mapping) else {}
    return found.name, given | found.options()


def owns_moments(method: Any) -> bool:
    """Whether a method stores moments in a way of its own, so that a policy for them has no say.

    Example:
        >>> owns_moments("excp"), owns_moments("lattice"), owns_moments("nobody's")
        (True, False, False)
    """
    try:
        return "moment" in resolve_method(method).owns
    except DynaQuantError:  # who runs it says what is wrong
        return False
