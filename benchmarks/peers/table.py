"""The peers by name: who codes weights, who codes moments, what is asked, what has to be installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from coder import Coder
from exact import Plain, Shared, TorchSave
from of_bitsandbytes import BitsAndBytes
from of_nncodec import NNCodec
from of_torchao import TorchAO
from of_zipnn import ZipNN

from dynaquant_core.config import nearest
from dynaquant_core.errors import ConfigError, DependencyError

__all__ = ["PEERS", "Peer", "chosen"]

#: Asked of a peer's weights: nothing, the threshold on the search set, or the bound on what a restore loses.
Guard = Literal["none", "threshold", "movement"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Two coders, and what is asked of the weights.

    Args:
        name: in tables.
        weights: makes a coder of weights.
        moments: makes one of moments; None: the policy of the experiment, as for the project's own methods.
        guard: what decides its knob; "none": it has none, and does not depend on the threshold.
        package: that has to be installed; None: nothing has to.
    """

    name: str
    weights: Callable[[], Coder]
    moments: Callable[[], Coder] | None
    guard: Guard = "none"
    package: str | None = None

    @property
    def installed(self) -> bool:
        """Whether its package can be imported."""
        return self.package is None or find_spec(self.package) is not None

    @property
    def version(self) -> str | None:
        """Of its package."""
        try:
            return None if self.package is None else version(self.package)
        except PackageNotFoundError:
            return None

    def moments_coder(self, policy: str) -> Coder:
        """A fresh coder of moments; ``policy``: the experiment's, for peers that have none."""
        return Shared(policy) if self.moments is None else self.moments()


PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch.save", TorchSave, TorchSave),
        Peer("zipnn", ZipNN, ZipNN, package="zipnn"),
        Peer("zipnn-delta", partial(ZipNN, delta=True), partial(ZipNN, delta=True), package="zipnn"),
        Peer("torchao-8bit", Plain, partial(TorchAO, 8), package="torchao"),
        Peer("torchao-4bit", Plain, partial(TorchAO, 4), package="torchao"),
        Peer("bitsandbytes", Plain, BitsAndBytes, package="bitsandbytes"),
        Peer("nncodec", NNCodec, None, guard="threshold", package="nncodec"),
        Peer("nncodec-er", NNCodec, None, guard="movement", package="nncodec"),
    )
}


def chosen(names: str | None) -> list[Peer]:
    """Peers by names with commas between; None: all whose package is installed.

    Raises:
        ConfigError: a name is not known.
        DependencyError: a package is missing; says what to run.
    """
    if names is None:
        return [peer for peer in PEERS.values() if peer.installed]
    found = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in PEERS:
            raise ConfigError(f"{name}: no such peer; {nearest(name, list(PEERS))}")
        found.append(PEERS[name])
    if not found:
        raise ConfigError(f"no peer was named; {nearest('', list(PEERS))}")
    for peer in found:
        if not peer.installed:
            file = Path(__file__).with_name("requirements.txt")
            raise DependencyError(
                f"peer {peer.name} needs {peer.package}, which is not installed; in an environment of its "
                f"own: pip install -r {file}"
            )
    return found
