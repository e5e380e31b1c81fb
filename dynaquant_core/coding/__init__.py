"""Arrays to bytes and back, exactly.

Every codec follows one protocol (`codec`), stands in one table (`registry`) and says beforehand what it will
cost (`cost`); `encode_smallest` picks the best for a stream.  Symbol codecs take codes below 1024 and may be
conditioned on the base checkpoint's codes; value codecs take any dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynaquant_core.coding.codec import MAX_LEVELS, Codec
from dynaquant_core.coding.registry import codec_by_id, codec_by_name, codec_name

if TYPE_CHECKING:
    from dynaquant_core.coding.choose import encode_smallest

__all__ = ["MAX_LEVELS", "Codec", "codec_by_id", "codec_by_name", "codec_name", "encode_smallest"]


def __getattr__(name: str) -> Any:
    """Imports `encode_smallest`, and the compiler with it, when it is first used."""
    if name == "encode_smallest":
        from dynaquant_core.coding.choose import encode_smallest

        return encode_smallest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
