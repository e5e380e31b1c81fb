"""A board that the ranks of a job write short notes on, for each other to read.

It lies in the key-value store through which torch.distributed was set up.  Unlike with a collective, the one
who waits knows whose note is missing, a wait that is given up leaves nothing behind that could hang, and a
rank that comes too late finds what the others decided.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from torch import distributed
from torch.distributed import distributed_c10d

from dynaquant_core.errors import EvaluationError
from dynaquant_core.plugins.lives import life
from dynaquant_core.plugins.of_group import OfGroup

__all__ = ["Board"]

#: Seconds between two looks, at first and at most.
SHORTEST, LONGEST = 0.0005, 0.02

#: A longer note lies in pieces of so many bytes: TCPStore drops a connection that sends it 8 MiB at once.
MOST_BYTES = 1 << 22

#: For what ranks wait as a rule, and what to do where one does not come.
SEARCH = "while the ranks searched together; look at its log (a longer DYNAQUANT_DEADLINE gives it more time)"

#: How the note of one in pieces begins; their number follows.  JSON never does.
PIECES = b"+"

#: When a rank has read a note last.
_heard = [0.0]

#: On rank 0: name of a board -> notes that may lie on it.
_lying: OfGroup[dict[str, set[str]]] = OfGroup(dict)


class Board:
    """The notes of one search.

    Args:
        name: the same on all ranks, and never used before in this process group.
        patience: seconds to wait for rank 0, where this rank has not heard of it yet.
        why: the end of the error's sentence then, with what to do.

    Attributes:
        rank: of this process.
        ranks: how many there are.

    Raises:
        EvaluationError: this process group has no store (MPI has none), or rank 0 is silent.
    """

    def __init__(self, name: str, patience: float, why: str = SEARCH) -> None:
        self.rank = distributed.get_rank()
        self.ranks = distributed.get_world_size()
        store = distributed_c10d._get_default_store()
        if store is None:
            raise EvaluationError(
                f"the process group ({distributed.get_backend()}) has no store through which the ranks could "
                "share the search; initialise it with gloo or nccl."
            )
        self._name = name
        try:
            found = life(patience)
        except RuntimeError as error:
            raise self._lost(error) from error
        if found is None:
            raise self._silent([0], patience, why)
        self._store = distributed_c10d.PrefixStore(f"dynaquant/{found}/{name}", store)

    def post(self, note: str, data: Mapping[str, Any]) -> None:
        """Puts a note up, JSON-ready data, for any rank to read.

        Raises:
            EvaluationError: the store fails.
        """
        text = json.dumps(data)  # ASCII
        pieces = [text[at : at + MOST_BYTES] for at in range(0, len(text), MOST_BYTES)]
        self.expect([note])
        try:
            if len(pieces) == 1:
                self._store.set(note, text)
                return
            for name, piece in zip(_pieces(note, len(pieces)), pieces, strict=True):
                self._store.set(name, piece)
            self._store.set(note, f"{PIECES.decode()}{len(pieces)}")  # last: who finds it finds them all
        except RuntimeError as error:
            raise self._lost(error) from error

    def read(self, note: str, writer: int, patience: float, why: str = SEARCH) -> dict[str, Any]:
        """The note that rank ``writer`` puts up, once it is there; arguments and errors as `gather`."""
        return self.gather({writer: note}, patience, why)[writer]

    def gather(
        self, notes: Mapping[int, str], patience: float, why: str = SEARCH
    ) -> dict[int, dict[str, Any]]:
        """The notes that several ranks put up, once all are there.

        Args:
            notes: rank -> name of its note.
            patience: seconds to wait for them.
            why: the end of the error's sentence, with what to do.

        Raises:
            EvaluationError: a rank did not put its note up in time; names it.  Or the store fails.
        """
        self.expect(notes.values())
        try:
            silent = self._await(notes, patience)
            if silent:
                raise self._silent(silent, patience, why)
            found = {rank: json.loads(self._text(note)) for rank, note in notes.items()}
        except RuntimeError as error:
            raise self._lost(error) from error
        _heard[0] = time.monotonic()
        return found

    @staticmethod
    def heard() -> float:
        """When this process has read notes last, of any board, as `time.monotonic` tells it."""
        return _heard[0]

    def has(self, note: str) -> bool:
        """Whether a note is there; False as well where the store fails."""
        with suppress(RuntimeError):
            return bool(self._store.check([note]))
        return False

    def expect(self, notes: Iterable[str]) -> None:
        """Tells of notes that a rank may put up, whether or not somebody will ask for them."""
        if self.rank == 0:
            _lying().setdefault(self._name, set()).update(notes)

    def take_down(self, notes: Iterable[str]) -> None:
        """Removes notes that everybody has read, where the store can; rank 0 does it."""
        _lying().get(self._name, set()).difference_update(notes)
        with suppress(RuntimeError, NotImplementedError):
            for note in notes:
                for name in self._names(note):
                    self._store.delete_key(name)

    def clear_others(self) -> None:
        """Takes down what lies on all other boards; for rank 0, once all ranks have put notes up on this one.

        Who has put one up has left the boards before: the ranks go from board to board in the same order, and
        none looks at one again, late as it may be.  Without this a job's store, which is rank 0's memory,
        would keep every plan of every search.
        """
        for name in [name for name in _lying() if name != self._name]:
            Board(name, 0.0).take_down(_lying().pop(name))

    def _text(self, note: str) -> bytes:
        text: bytes = self._store.get(note)
        if not text.startswith(PIECES):
            return text
        return b"".join(self._store.get(name) for name in _pieces(note, _number(text)))

    def _names(self, note: str) -> list[str]:
        """What a note consists of: itself, and its pieces if it lies there in some."""
        text = self._store.get(note) if self._store.check([note]) else b""
        return [note, *_pieces(note, _number(text))] if text.startswith(PIECES) else [note]

    def _silent(self, ranks: list[int], patience: float, why: str) -> EvaluationError:
        return EvaluationError(
            f"{_listed(ranks)} of {self.ranks} did not answer within {patience:g} s {why}."
        )

    def _lost(self, error: RuntimeError) -> EvaluationError:
        reason = str(error).strip().split("\n", maxsplit=1)[0] or type(error).__name__
        return EvaluationError(
            f"rank {self.rank} of {self.ranks} cannot use the process group's store any more ({reason}), so "
            "the search could not be finished; a TCPStore goes with rank 0, so look at its log first."
        )

    def _await(self, notes: Mapping[int, str], patience: float) -> list[int]:
        """Looks until all notes are there; the ranks whose note is not when patience ends."""
        deadline, pause = time.monotonic() + patience, SHORTEST
        while not self._store.check(list(notes.values())):
            if time.monotonic() >= deadline:
                return [rank for rank, note in notes.items() if not self._store.check([note])]
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST)
        return []


def _pieces(note: str, number: int) -> list[str]:
    return [f"{note}{PIECES.decode()}{piece}" for piece in range(number)]


def _number(text: bytes) -> int:
    return int(text.removeprefix(PIECES))


def _listed(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
