"""Loading through a store's own object: what is read, and what the next save makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from dynaquant_core.errors import EmptyStoreError
from dynaquant_core.store.chain import Chain, Link
from dynaquant_core.store.descriptors import is_out_of_means
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.meta import PartMeta
from dynaquant_core.store.parts import Base
from dynaquant_core.store.reader import FALLBACK_ERRORS, Reader
from dynaquant_core.store.restore import fill, is_host, part_of_state, require_fit, whole_state
from dynaquant_core.store.session import Session

__all__ = ["Loading"]

Device = str | torch.device | None
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Loading:
    """Reads checkpoints, and tells the session which a run may go on from; see `store.CheckpointStore`.

    Args:
        reader: of the store's files.
        session: of the object that saves.
    """

    reader: Reader
    session: Session

    def some(self, step: int | None, patterns: Sequence[str], device: Device) -> Any:
        """The part of a state that the patterns cover."""

        def action(chain: Chain) -> tuple[PartMeta | None, Any]:
            return chain.last.weights, part_of_state(chain, patterns, device)

        info, (written, state) = self._read(step, action)
        self.session.look(info, None, written)
        return state

    def whole(self, step: int | None, device: Device) -> Any:
        """A state, to look at or to go on from."""
        info, base, written, state = self._whole(step, device)
        self.session.look(info, base, written)
        return state

    def resume(self, step: int | None, device: Device) -> Any:
        """A state that a run goes on from."""
        try:
            info, base, written, state = self._whole(step, device)
        except EmptyStoreError:  # the run begins from nothing
            self.session.tells = True
            raise
        self.session.remember(info, base, written)
        self.session.tells = True
        return state

    def into(self, tree: Any, step: int | None) -> CheckpointInfo:
        """A state into a tree that exists, after all of it was compared."""

        def action(chain: Chain) -> tuple[Base, Link]:
            require_fit(chain.last, tree)
            return chain.base(chain.hold()), chain.last

        info, (base, link) = self._read(step, action)
        fill(tree, link, base.parts)
        self.session.remember(info, base, link.weights)
        return info

    def alone(self, step: int) -> Any:
        """A state for somebody else: no run goes on from it."""
        return self._read(step, lambda chain: whole_state(chain.last, chain.hold(whole=True), None))[1]

    def _read(self, step: int | None, action: Callable[[Chain], Result]) -> tuple[CheckpointInfo, Result]:
        """As `Reader.read`; an explicit step that cannot be read takes the place of none that can."""
        try:
            return self.reader.read(step, action)
        except FALLBACK_ERRORS as error:
            if step is not None and not is_out_of_means(error):
                self.session.doubt(self.reader.names_of(step))
            raise

    def _whole(self, step: int | None, device: Device) -> tuple[CheckpointInfo, Base, PartMeta | None, Any]:
        def action(chain: Chain) -> tuple[Base, PartMeta | None, Any]:
            held = chain.hold(whole=is_host(device))
            return chain.base(held), chain.last.weights, whole_state(chain.last, held, device)

        info, (base, written, state) = self._read(step, action)
        return info, base, written, state
