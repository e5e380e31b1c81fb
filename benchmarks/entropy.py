"""Bytes of every coded stream of a store over n H(code | context), tables included.

A code's context is the code before it; of codes that were drawn, which a restored run writes, also the place
that the weight's draw has in it, where the file says that these were its contexts.

python benchmarks/entropy.py runs/gpt_shakespeare/run-1/store
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.cost import entropy_bits
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.format import FileReader, PartSource
from dynaquant_core.methods import resolve_method
from dynaquant_core.methods.dynaquant.dithered import drawn_contexts
from dynaquant_core.methods.dynaquant.held import Coded
from dynaquant_core.methods.dynaquant.layout import read_array

#: Streams whose information is below this many bytes are left out of the worst ratio: headers dominate them.
SMALL = 1024


@dataclass(frozen=True)
class Excess:
    """A stream's payload and its information, in bytes."""

    file: str
    tensor: str
    payload: int
    information: float


def streams(store: Path) -> Iterator[Excess]:
    """Every code stream of a store whose files form one run, oldest first; two deltas may share a base."""
    method, known = resolve_method("dynaquant"), {}
    for path in sorted(store.glob("*.dq"), key=lambda file: file.name.rsplit("-", 1)[1]):
        with FileReader(path) as reader:
            part = reader.index.meta["parts"].get("weights")
            if part is not None and part["method"] != method.name:
                raise SystemExit(f"{path} is of {part['method']}: only codes of {method.name} are counted.")
            source, link = reader.source("weights"), reader.index.meta["base"]
            before = None if link is None else known[link["digest"]]
            known = known if link else {}  # of older chains nothing is needed
            known[reader.digest] = held = method.decode(source, before)
            for name in source.specs:
                coded = held.coded(name)
                if coded is None:
                    continue
                base = None if before is None else before.coded(name)
                kind = "drawn" if source.has(name, "drawn") else "codes"
                joint = joint_counts(coded.codes, contexts(source, name, kind, base))
                yield Excess(path.name, name, len(source.get(name, kind)[1]), entropy_bits(joint) / 8)


def contexts(source: PartSource, name: str, kind: str, base: Coded | None) -> NDArray[Any] | None:
    """What a tensor's stream of a kind was coded under; None in a key."""
    if base is None or kind == "codes":
        return None if base is None else base.codes
    return drawn_contexts(base, int(read_array(source, "epoch", 1, np.uint32)[0]), name)


def summary(store: Path) -> dict[str, object]:
    """Sum over all streams, and the worst stream of more than `SMALL` bytes of information."""
    found = list(streams(store))
    payload, information = sum(one.payload for one in found), sum(one.information for one in found)
    large = [one for one in found if one.information >= SMALL]
    worst = max(large, key=lambda one: one.payload / one.information, default=None)
    return {
        "streams": len(found),
        "payload_bytes": payload,
        "information_bytes": round(information),
        "ratio": round(payload / information, 4) if information else None,
        "worst_ratio": round(worst.payload / worst.information, 4) if worst else None,
        "worst_stream": f"{worst.file} {worst.tensor}" if worst else None,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="a folder of checkpoints")
    print(json.dumps(summary(parser.parse_args().store), indent=1))
