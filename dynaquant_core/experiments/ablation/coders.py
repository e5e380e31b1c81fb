"""The same codes under four coders: the ablation of the paper's section 6, in real bytes.

| name | what is written of each tensor |
|---|---|
| HE | Huffman codes of the cyclic differences to the base's codes |
| RLE+HE | runs of those differences, then Huffman |
| rearranged | differences grouped by source code, then runs and Huffman: the paper's coder |
| ours | the smallest of the codecs that the method tries, conditional rANS among them |

Without a base there is no difference: codes are coded as they are.  Tables are counted, and every payload is
decoded and compared before its size is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dynaquant_core.coding import encode_smallest
from dynaquant_core.coding.codec import Array
from dynaquant_core.coding.registry import codec_by_id, codec_by_name
from dynaquant_core.delta import cyclic_delta
from dynaquant_core.errors import ExperimentError
from dynaquant_core.methods.dynaquant.draft import code_candidates

__all__ = ["CODERS", "coded_bytes"]

#: (codec id, values, context or None) of one coder for codes and their base's.
Written = tuple[int, bytes, Array, Array | None]


def _differences(codes: Array, base: Array | None) -> Array:
    if base is None:
        return codes
    levels = 1 + max(int(codes.max(initial=0)), int(base.max(initial=0)))
    return cyclic_delta(base, codes, levels=levels)


def _by_name(name: str, values: Array, context: Array | None) -> Written:
    codec = codec_by_name(name)
    return codec.id, codec.encode(values, context), values, context


def _ours(codes: Array, base: Array | None) -> Written:
    number, payload = encode_smallest(codes, base, code_candidates("auto", has_base=base is not None))
    return number, payload, codes, base


#: Name -> what it writes for codes, uint8[n], and the base's or None; simplest first.
CODERS: Mapping[str, Callable[[Array, Array | None], Written]] = {
    "HE": lambda codes, base: _by_name("huffman", _differences(codes, base), None),
    "RLE+HE": lambda codes, base: _by_name("rle_huffman", _differences(codes, base), None),
    "rearranged": lambda codes, base: _by_name("paper", codes, base),
    "ours": _ours,
}


def coded_bytes(codes: Array, base: Array | None) -> dict[str, int]:
    """Bytes of one tensor's codes under every coder.

    Args:
        codes: uint8[n].
        base: uint8[n], the codes of the checkpoint before; None: there is none.

    Raises:
        ExperimentError: what a coder wrote does not decode to what it was given.

    Example:
        >>> before = np.tile(np.arange(8, dtype=np.uint8), 500)
        >>> now = before.copy()
        >>> now[before == 3] = 4
        >>> sizes = coded_bytes(now, before)
        >>> list(sizes), sizes["rearranged"] < sizes["HE"]
        (['HE', 'RLE+HE', 'rearranged', 'ours'], True)
    """
    sizes = {}
    for name, write in CODERS.items():
        number, payload, values, context = write(codes, base)
        found = np.empty_like(values)
        codec_by_id(number).decode(payload, found, context)
        if not np.array_equal(found, values):
            raise ExperimentError(f"coder {name}: what was written of {codes.size} codes decodes to others.")
        sizes[name] = len(payload)
    return sizes
