"""YAML as a user writes it, into plain values: the safe loader, and a line for whatever cannot be meant."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import MappingNode

from dynaquant_core.errors import ConfigError

__all__ = ["read_yaml"]

#: ``<<``, which may stand beside the keys that it brings along.
MERGE = "tag:yaml.org,2002:merge"

#: Bits of a whole number that every float can follow; longer ones cannot even be printed.
MOST_BITS = 1000


def read_yaml(text: str, where: str) -> Any:
    """The value that a text says.

    Args:
        text: one YAML document.
        where: it comes from, for the message.

    Raises:
        ConfigError: it is not YAML, a key is there twice in one mapping, or a value does not exist (a 30th of
            February, a number of thousands of digits).

    Example:
        >>> read_yaml("{a: 1, b: [2.5, x]}", "here")
        {'a': 1, 'b': [2.5, 'x']}
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it derives from the safe one
    except _TwiceError as error:
        raise ConfigError(f"{where}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:  # of int and date, which say it in their own words
        raise ConfigError(f"{where}: a value is none ({error}); put a text in quotes.") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply, or a part holds itself.") from None


class _TwiceError(yaml.YAMLError):
    """A key stands twice in one mapping."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Looks at keys as they are written: later ones come in through ``<<`` and may repeat."""
        node: MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            name = (key.tag, key.value)
            if name in seen:
                raise _TwiceError(
                    f"key {key.value!r} is there twice, again in line {key.start_mark.line + 1}; "
                    "leave one of them."
                )
            seen.add(name)
        return node

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MOST_BITS:
            raise ValueError(f"a whole number of {len(node.value)} digits")
        number: int = super().construct_yaml_int(node)
        if number.bit_length() > MOST_BITS:
            raise ValueError(f"a whole number of more than {MOST_BITS} bits")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
