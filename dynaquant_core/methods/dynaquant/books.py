"""All codebooks of a candidate: own, kept or shared, and the scope they are chosen in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dynaquant_core.config import Config, DynaQuantOptions
from dynaquant_core.methods.dynaquant.book import WORDS, Book, Centres, choose_book, keep_or_fit
from dynaquant_core.methods.dynaquant.counts import SurvivorCounts
from dynaquant_core.methods.dynaquant.dithered import fitted_to, keep_or_widen
from dynaquant_core.methods.dynaquant.held import Scope
from dynaquant_core.methods.dynaquant.predict import predicted_bytes
from dynaquant_core.methods.dynaquant.scope import equal_error_bytes, merge
from dynaquant_core.methods.dynaquant.survey import Survey
from dynaquant_core.threads import map_threads

__all__ = ["Bookshelf", "Choice"]

Survivors = Mapping[str, SurvivorCounts]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """The codebook of every tensor, the shared centres if there are any, and the scope."""

    books: Mapping[str, Book]
    shared: Centres | None
    scope: Scope


class Bookshelf:
    """Chooses the codebooks of one candidate.

    Args:
        survey: sketches of the state and the base's codes.
        config: the point of the cube.
        options: the method's options.
    """

    def __init__(self, survey: Survey, config: Config, options: DynaQuantOptions) -> None:
        self.survey, self.config, self.options = survey, config, options
        self.cuts = survey.cuts(config)
        self._keep = keep_or_fit if survey.epoch is None else keep_or_widen
        self.names = list(survey.state)
        kernels = any(cut.needs_gradient for cut in self.cuts.values())
        self.survivors: Survivors = self._each(self._survivors, threads=kernels)

    def choose(self) -> Choice:
        """The codebooks; the scope is the option's, the chain's, or (auto, at a key) the better of two."""
        asked, base = self.options.codebook_scope, self.survey.ref
        if asked != "auto":
            return self._within(asked)
        if base is not None:
            return self._within(base.scope)
        return min((self._within(scope) for scope in ("tensor", "global")), key=self._worth)

    def _each(self, function: Callable[[str], T], *, threads: bool) -> dict[str, T]:
        """The function's result by name of a tensor.

        NumPy on a few thousand buckets holds the interpreter lock for nearly as long as it takes, and threads
        only wait for each other; those that run kernels, such as a fit, do not.
        """
        found = map_threads(function, self.names) if threads else map(function, self.names)
        return dict(zip(self.names, found, strict=True))

    def _survivors(self, name: str) -> SurvivorCounts:
        return fitted_to(self.survey, name, self.cuts[name])

    def _is_embedding(self, name: str) -> bool:
        return self.survey.types[name] == "embedding"

    def _bins(self, name: str) -> int:
        config = self.config
        return int((config.embedding_bins if self._is_embedding(name) else None) or config.bins)

    def _base(self, name: str) -> Centres | None:
        """Centres that the base holds for a tensor."""
        coded = None if self.survey.ref is None else self.survey.ref.coded(name)
        return None if coded is None else coded.centres

    def _needs_a_fit(self, name: str) -> bool:
        """Whether there is nothing in the base that could be kept."""
        base = self._base(name)
        return base is None or base.size != self._bins(name)

    def _within(self, scope: Scope) -> Choice:
        """The codebooks in the given scope."""
        shared = self._shared() if scope == "global" else None

        def choose(name: str) -> Book:
            return choose_book(
                self.survivors[name],
                self._bins(name),
                self.options,
                base=self._base(name),
                shared=None if self._is_embedding(name) else shared,
                keep=self._keep,
                drawn=self.survey.epoch is not None,
            )

        fits = any(map(self._needs_a_fit, self.names))
        return Choice(self._each(choose, threads=fits), shared, scope)

    def _shared(self) -> Centres | None:
        """One codebook on the merged sketch of all but embeddings; the base's while nearly as good."""
        together = {name: part for name, part in self.survivors.items() if not self._is_embedding(name)}
        if not together:
            return None
        base = None if self.survey.ref is None else self.survey.ref.shared
        book = self._keep(merge(together), int(self.config.bins), self.options, base)
        return None if book is WORDS else book.centres

    def _worth(self, choice: Choice) -> float:
        """Bytes of a choice at equal error; errors weigh by the squared gradient where it is known."""
        total = error = 0.0
        weights = 0
        for name, book in choice.books.items():
            total += predicted_bytes(self.survey, name, self.cuts[name], book)
            error += self._error_weight(name) * book.loss
            weights += self.survey.state[name].numel()
        return equal_error_bytes(total, error, weights)

    def _error_weight(self, name: str) -> float:
        """Mean squared gradient (the loss's curvature, roughly); else one over the mean squared weight."""
        gradient = self.survey.gradients.get(name)
        if gradient is not None:
            return float(gradient.detach().float().square().mean())
        energy = self.survivors[name].energy
        return self.survey.state[name].numel() / energy if energy > 0 else 0.0
