"""Bytes of every coded stream of a store over n H(code | previous code), tables included.

python benchmarks/entropy.py runs/gpt_shakespeare/run-1/store
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dynaquant_core.coding.cost import entropy_bits
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.format import FileReader
from dynaquant_core.methods import resolve_method

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
                joint = joint_counts(coded.codes, None if base is None else base.codes)
                payload = len(source.get(name, "codes")[1])
                yield Excess(path.name, name, payload, entropy_bits(joint) / 8)


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
