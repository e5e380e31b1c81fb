"""Small checkpoint files, and files whose index was tampered with and sealed again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from dynaquant_core.format import FileWriter, TensorEntry
from dynaquant_core.format.layout import FOOTER_BYTES, Footer, index_digest

PARTS = {
    "weights": {"method": "m", "options": {}, "config": {"bins": 8}},
    "exact": {"method": "exact", "options": {}, "config": {}},
}
META = {
    "step": 20,
    "sequence": 3,
    "kind": "key",
    "base": None,
    "parts": PARTS,
    "report": {"quality": float("nan")},
}
TREE = {"model": {"w": ["t"], "b": ["t"], "tied": ["t", 0]}, "step": 20}
TENSORS = [
    TensorEntry("model.w", (4, 8), "float32", "weight", "weights"),
    TensorEntry("model.b", (8,), "bfloat16", "weight", "exact"),
]
STREAMS = [
    ("weights", "", "centres", 0, b"shared bytes"),
    ("weights", "model.w", "codes", 4, bytes(range(40))),
    ("weights", "model.w", "protected", 0, b""),
    ("exact", "model.b", "values", 6, b"abcdefghijkl"),
    ("exact", "", "layout", 1, b"\x01"),
]


def sample(streams: Any = STREAMS, meta: Any = META, tree: Any = TREE, tensors: Any = TENSORS) -> bytes:
    out = io.BytesIO()
    writer = FileWriter(out)
    for part, name, kind, codec, payload in streams:
        writer.add(part, name, kind, codec, payload)
    writer.finish(meta, tree, tensors)
    return out.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def index_of(data: bytes) -> tuple[Footer, dict[str, Any]]:
    footer = Footer.unpack(data[-FOOTER_BYTES:], len(data), "sample")
    stored = data[footer.offset : footer.offset + footer.stored]
    return footer, json.loads(zstandard.ZstdDecompressor().decompress(stored))


def resealed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with another index whose checksum is right: only the reader's own checks can refuse it."""
    footer, document = index_of(data)
    changed = change(document)
    text = json.dumps(document if changed is None else changed).encode()
    return with_index(data[: footer.offset], text)


def with_index(head: bytes, text: bytes, *, raw: int | None = None, stored: bytes | None = None) -> bytes:
    stored = zstandard.ZstdCompressor().compress(text) if stored is None else stored
    raw = len(text) if raw is None else raw
    digest = index_digest(len(head), stored, raw)
    return head + stored + Footer(len(head), len(stored), raw, digest).pack()
