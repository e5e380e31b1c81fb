"""Names of methods to their classes: one visible table, and what is installed through entry points.

A class is imported when it is first asked for, so a method that nobody uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dynaquant_core.config import Config, LatticeConfig, nearest
from dynaquant_core.errors import ConfigError, DependencyError, UnknownMethodError
from dynaquant_core.methods.base import Method

__all__ = [
    "BUILT_IN",
    "DEFAULT_METHOD",
    "ENTRY_POINTS",
    "method_for_config",
    "method_names",
    "require_own_config",
    "resolve_method",
]

#: What ``method=None`` means where nothing was stored before.
DEFAULT_METHOD = "lattice"

#: Name -> "module:attribute" of a class whose keyword arguments are the method's options.
BUILT_IN: Mapping[str, str] = {
    "lattice": "dynaquant_core.methods.lattice:Lattice",
    "dynaquant": "dynaquant_core.methods.dynaquant:DynaQuant",
    "exact": "dynaquant_core.methods.exact:Exact",
    "qd": "dynaquant_core.methods.qd:Qd",
    "cnr": "dynaquant_core.methods.cnr:Cnr",
    "gobo": "dynaquant_core.methods.gobo:Gobo",
    "lc": "dynaquant_core.methods.lc:Lc",
    "scar": "dynaquant_core.methods.scar:Scar",
    "topn": "dynaquant_core.methods.topn:TopN",
    "excp": "dynaquant_core.methods.excp:Excp",
    "zstd": "dynaquant_core.methods.zstd:ZstdBytes",
    "none": "dynaquant_core.methods.none:NoCompression",
}

#: The method that a config belongs to.
OWNERS: Mapping[type, str] = {LatticeConfig: "lattice", Config: "dynaquant"}

#: Packages add methods here; a built-in name cannot be taken over.
ENTRY_POINTS = "dynaquant.methods"


def method_names() -> list[str]:
    """Every name that `resolve_method` knows: the built-in ones first, then installed ones.

    Example:
        >>> method_names()[:2]
        ['lattice', 'dynaquant']
    """
    return [*BUILT_IN, *sorted(set(_installed()) - set(BUILT_IN))]


def resolve_method(spec: str | Mapping[str, Any] | Method | None = None) -> Method:
    """Turns what a user gives as ``method=`` into a method.

    Args:
        spec: None (the project's default), a name, a mapping ``{"name": ..., option: value, ...}``, or an
            object that follows the protocol, which is returned as it is.

    Raises:
        UnknownMethodError: no method of that name exists; the nearest one is named.
        ConfigError: the specification is of another type, or an option is unknown or out of range.
        DependencyError: the method's package is installed but cannot be imported.

    Example:
        >>> resolve_method().name, resolve_method({"name": "dynaquant", "coder": "paper"}).name
        ('lattice', 'dynaquant')
    """
    if spec is None or isinstance(spec, str):
        return _build(spec or DEFAULT_METHOD, {})
    if isinstance(spec, Mapping):
        options = {str(key): value for key, value in spec.items()}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ConfigError(f"method: a mapping needs a 'name', got the keys {sorted(options)}.")
        return _build(name, options)
    if isinstance(spec, Method) and not isinstance(spec, type):
        return spec
    raise ConfigError(f"method must be a name, a mapping with a 'name', or a method object, got {spec!r}.")


def method_for_config(config: object, method: Method) -> Method:
    """The method that ``config`` belongs to; ``method`` where it is no other built-in's."""
    owner = _owner(config, method)
    return method if method.name == owner else resolve_method(owner)


def require_own_config(config: object, method: Method) -> None:
    """Refuses a config of another built-in method: for calls that name a method and a config together.

    Raises:
        ConfigError: names both methods.
    """
    owner = _owner(config, method)
    if owner != method.name:
        raise ConfigError(
            f"config: a {type(config).__name__} belongs to the method {owner!r}, and the method asked for is "
            f"{method.name!r}; leave one of the two away."
        )


def _owner(config: object, method: Method) -> str:
    return next((name for kind, name in OWNERS.items() if isinstance(config, kind)), method.name)


def _build(name: str, options: Mapping[str, Any]) -> Method:
    factory = _load(name)
    try:
        method = factory(**options)
    except TypeError as error:
        raise ConfigError(f"method {name!r} does not take the options {sorted(options)}: {error}.") from error
    if not isinstance(method, Method):
        raise ConfigError(f"method {name!r}: {factory!r} does not follow the method protocol.")
    if method.name != name:  # what it saved would name a method that is not there
        raise ConfigError(
            f"method {name!r} calls itself {method.name!r}; its entry point and its `name` have to agree."
        )
    return method


def _load(name: str) -> Any:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)
    installed = _installed()
    if name not in installed:
        raise _unknown(name)
    try:
        return installed[name].load()
    except (ImportError, AttributeError) as error:
        point = installed[name].value
        raise DependencyError(
            f"method {name!r} is installed but {point!r} fails to import: {error}."
        ) from error


def _unknown(name: str) -> UnknownMethodError:
    return UnknownMethodError(f"There is no method {name!r}; {nearest(name, method_names())}")


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
