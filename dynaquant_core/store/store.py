"""The store: a folder of compressed checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dynaquant_core.config import require
from dynaquant_core.errors import MissingBaseError, NotAStoreError
from dynaquant_core.methods.base import Method
from dynaquant_core.store.best import best_of
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.chain import MAX_DEPTH, Chain
from dynaquant_core.store.described import description_of
from dynaquant_core.store.disk import guarded, path_from
from dynaquant_core.store.exporters import resolve_exporter, taken
from dynaquant_core.store.info import CheckpointInfo, Problem
from dynaquant_core.store.loading import Loading
from dynaquant_core.store.partial import patterns_of
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import prepare
from dynaquant_core.store.reader import Reader
from dynaquant_core.store.remarks import Remarks
from dynaquant_core.store.retention import Policy
from dynaquant_core.store.saving import Saving
from dynaquant_core.store.session import Session
from dynaquant_core.store.super_step import SuperSteps
from dynaquant_core.store.upkeep import Upkeep
from dynaquant_core.store.verify import verify
from dynaquant_core.store.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CheckpointStore"]


class CheckpointStore:
    """A folder of compressed checkpoints.

    What is saved is there after any crash, whole or not at all; what was there before stays until what
    replaces it is safe.  Reading takes no lock; the first save takes one that ends with this object or its
    process.  Methods may be called from several threads.

    Args:
        path: the folder; made at the first save.  A relative one is meant from where the process is now,
            wherever it goes later.  A folder of other files that never was a store is refused when it is
            read or saved into; what others write beside the checkpoints later is left alone.
        method: name, mapping with a "name" and options, or method object; None: that of the checkpoint last
            loaded or saved through this object, and before the first the project's default, "lattice".
        moments: policy for optimizer moments, "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns of tensors kept bit for bit (fnmatch on the dotted name or on any parent);
            of a tied tensor any of its names will do.
        max_chain: deltas between a checkpoint and its key, at most; 0: keys only.  A full chain takes
            a second line of deltas on the link in its middle before a key is written.
        keep_last, keep_every, keep_within: what stays: so many of the newest; the first at or after each
            multiple of a step; the newest that fit into so many bytes (see `retention.Policy`).  A checkpoint
            that another one builds on always stays, and stays listed.  One that this object could not read
            takes no place.

    Raises:
        ConfigError: an argument is unknown, ill-typed or out of range.
        NotAStoreError: the path is a file.

    Example:
        >>> store = CheckpointStore("checkpoints", method="exact", keep_last=2)
        >>> info = store.save(100, {"model": {"weight": torch.ones(32, 32)}, "step": 100})
        >>> info.kind, store.steps(), store.load()["model"]["weight"].sum().item()
        ('key', [100], 1024.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        method: str | Mapping[str, Any] | Method | None = None,
        moments: str = "8bit",
        exact: str | Sequence[str] = (),
        max_chain: int = 8,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: float | str | None = None,
    ) -> None:
        good = type(max_chain) is int and 0 <= max_chain < MAX_DEPTH
        require(good, f"max_chain must be a whole number from 0 to {MAX_DEPTH - 1}, got {max_chain!r}.")
        given = path_from("CheckpointStore: path", path)
        with guarded("find", given):
            self.path = given.absolute()
            is_other = self.path.exists() and not self.path.is_dir()
        if is_other:
            raise NotAStoreError(f"{str(self.path)!r} is a file; a store is a folder of checkpoints.")
        self._settings = Settings.of(method, moments, exact)
        policy = Policy.of(keep_last, keep_every, keep_within)
        self._catalogue = Catalogue(self.path)
        self._reader = Reader(self.path, self._catalogue, self._settings.weights)
        writer = Writer(self.path, self._catalogue, policy)
        super_steps = SuperSteps(self.path, self._catalogue, policy, self._settings.weights)
        self._session = Session(self.path, self._catalogue, self._reader, writer, super_steps, max_chain)
        self._loading = Loading(self._reader, self._session)
        self._upkeep = Upkeep(
            self.path,
            self._catalogue,
            self._reader,
            self._session,
            writer,
            policy,
            max_chain,
            self._settings.weights,
        )
        self._remarks = Remarks()

    @property
    def loaded(self) -> CheckpointInfo | None:
        """The checkpoint last saved through this object, or loaded to go on from."""
        return self._session.loaded

    @property
    def method(self) -> Method:
        """The method of the next save: the one asked for, else that of the checkpoint to go on from."""
        return self._settings.after(self._session.written).weights

    def close(self) -> None:
        """Waits for a write that is under way and lets others write; the object can go on being used."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- saving ------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: Any,
        *,
        config: Any = None,
        gradients: Mapping[str, Tensor] | None = None,
        model: Any = None,
    ) -> CheckpointInfo:
        """Saves a state; when this returns, it survives a power loss.

        Args:
            step: completed optimizer steps; saving a step again supersedes it.
            state: a tree of tensors and plain objects (see `state.flatten`).
            config: one point of a method's search space; None: the method's careful default.  A `Config`
                picks the method "dynaquant", a `LatticeConfig` the method "lattice".
            gradients: EMA of the gradient by parameter name, for sensitivity.
            model: a module, or name -> module: says which tensors are buffers, which stay exact, and layer
                types; None: these go by tensor name, and nobody knows of buffers.

        Raises:
            ConfigError: ``step``, ``config``, ``gradients`` or ``model`` is not what it should be.
            UnsupportedStateError: the tree holds an object that a checkpoint cannot hold.
            NotAStoreError: the folder held other files and no checkpoint when this object was made, and still
                holds none; nothing was written.
            StoreNotEmptyError: the folder holds another run's checkpoints and this object read none of them.
            StoreLockedError: another writer holds the store.
            StorageError: the system refused; nothing is lost and nothing half-written is left.
            BudgetError: ``keep_within`` cannot be kept.
        """
        started = time.perf_counter()
        try:
            info = self._save(step, state, gradients=gradients, model=model, config=config)
        except MissingBaseError:  # another thread has compacted or deleted: the state is still at hand
            info = self._save(step, state, gradients=gradients, model=model, config=config)
        return replace(info, seconds={**info.seconds, "held": time.perf_counter() - started})

    def _save(self, step: int, state: Any, *, config: Any, **about: Any) -> CheckpointInfo:
        saving = self.begin(step, state, config=config, **about)
        return saving.seal(saving.draft(config)).write()

    def begin(
        self,
        step: int,
        state: Any,
        *,
        gradients: Mapping[str, Tensor] | None = None,
        model: Any = None,
        config: Any = None,
    ) -> Saving:
        """Begins a save whose configuration is yet to be found; see `saving.Saving`, arguments as `save`."""
        settings = self._settings.after(self._session.written)
        prepared = prepare(settings, step, state, gradients=gradients, model=model, config=config)
        base = self._session.prepare(prepared.division)
        self._remarks.on(prepared, self._settings, gradients, model)
        return prepared.saving(base, self._session.commit, self._session.last)

    def require_own_run(self) -> None:
        """Says before the first save what that would refuse; nothing is written and no lock taken.

        Raises:
            StoreNotEmptyError: the folder holds another run's checkpoints and this object read none of them.
        """
        self._session.require_own_run()

    # -- loading -----------------------------------------------------------------------------------

    def load(
        self,
        step: int | None = None,
        *,
        names: str | Iterable[str] | None = None,
        device: str | torch.device | None = None,
    ) -> Any:
        """Loads a state, to look at it or to go on from it.

        Where a run goes on through `resume`, as that of a `Checkpointer` does, loading leaves it alone.  On
        any other object what is loaded in full may be what a run goes on from, and counts as that.

        Args:
            step: an explicit step never falls back; None: the newest whole checkpoint, saying in the log what
                was passed over and why.
            names: only these tensors and what they lie in: dotted names from the root, of tensors or of
                whole branches ("model"), or patterns; None: everything.
            device: where the tensors go; None: the CPU.

        Returns:
            The state as it was saved; with ``names``, its smaller tree.

        Raises:
            EmptyStoreError: no checkpoint, or no whole one; NotAStoreError: a folder of something else.
            CheckpointNotFoundError: the step is not there.
            CorruptFileError, MissingBaseError: the explicit step is damaged.
            StateMismatchError: ``names`` cover nothing.
            ConfigError: ``step`` is no whole number, or ``names`` are no texts.
        """
        if names is None:
            return self._loading.whole(step, device)
        return self._loading.some(step, patterns_of("names", names), device)

    def resume(self, step: int | None = None, *, device: str | torch.device | None = None) -> Any:
        """Loads the state that a run goes on from; arguments, result and errors as `load`.

        The next save may be a delta against it, and methods that draw at random draw anew.  From now on,
        until `close`, this object takes no other `load` for a restore.
        """
        return self._loading.resume(step, device)

    def load_into(self, tree: Any, step: int | None = None) -> CheckpointInfo:
        """Loads into a tree that exists: tensor by tensor, without a second copy of the state.

        Tensors and arrays are written in place, other values in dictionaries and lists replaced.  Before the
        first write everything was read, verified and compared with the tree.

        Args:
            tree: of the same structure as the stored one.
            step: as `load`.

        Raises:
            StateMismatchError: names, shapes or dtypes differ; the tree is untouched.
            Others as `load`.
        """
        return self._loading.into(tree, step)

    # -- looking -----------------------------------------------------------------------------------

    def newest(self) -> CheckpointInfo | None:
        """The newest whole checkpoint, every byte of its chain verified.

        Returns:
            Its info, with what was passed over, and why, in ``skipped``; None where the folder is missing or
            empty.

        Raises:
            EmptyStoreError: there are checkpoints but none is whole.
            NotAStoreError: the folder holds other files but no checkpoint.
        """
        scan = self._catalogue.store()
        if not scan.entries and not scan.damaged:
            return None
        info = self._reader.read(None, Chain.verify)[0]
        self._session.doubt(problem.name for problem in info.skipped)
        return info

    def best(self) -> CheckpointInfo:
        """The checkpoint whose metric, as stored, on the search's batches, is best; of equals the newest.

        Only what was measured counts: checkpoints saved with ``evaluate``.  Its file is not read beyond its
        index: `load` and `export` of its step say where it is damaged.

        Raises:
            EmptyStoreError: there is no checkpoint; NotAStoreError: as `newest`.
            CheckpointNotFoundError: none was measured.
        """
        return best_of(
            (entry.info for entry in self._catalogue.store().current().values()), repr(str(self.path))
        )

    def steps(self) -> list[int]:
        """Steps of all checkpoints, ascending; raises NotAStoreError as `newest`."""
        return list(self._catalogue.store().current())

    def info(self, step: int) -> CheckpointInfo:
        """What is known about a step without decoding it; raises as `load`."""
        return self._reader.find(self._catalogue.scan(), step).info

    def verify(self, deep: bool = False) -> list[Problem]:
        """Looks for damage: every byte against its checksum, every base; deep: every tensor decoded too.

        Returns:
            One problem a file that cannot be read, because of itself or of what it builds on; empty for a
            sound store.

        Raises:
            NotAStoreError: as `newest`.
        """
        problems = verify(self._catalogue.store, self._settings.weights, deep=deep)
        self._session.doubt(problem.name for problem in problems)
        return problems

    # -- changing ----------------------------------------------------------------------------------

    def export(self, step: int, path: str | os.PathLike[str], to: str | None = None) -> None:
        """Writes one checkpoint, decoded, as a file of another format.

        Args:
            step: which.
            path: of the new file; a symbolic link to one is followed.
            to: "pt" (loads with ``weights_only=True``), "safetensors", or an installed exporter's name; None:
                by the suffix of ``path``.

        Raises:
            ConfigError: no such exporter, or ``path`` is no path.
            Others as `load`.
        """
        target = path_from("export: path", path)
        exporter = resolve_exporter(to, target)
        state = self._loading.alone(step)
        exporter(state, target, **taken(exporter, metadata=description_of(self.info(step).report)))

    def compact(self) -> list[int]:
        """Frees space: every checkpoint that stays only because another builds on it is removed.

        What builds on such a one is written anew, to the same bits: merged onto the nearest one below that
        stays, where its method can merge; else as a key checkpoint, and so is every link of a chain longer
        than ``max_chain``.  Old files go only after the new ones are committed.

        What stays in the place of something older is read first: where it is damaged, the newest that is
        whole stays as well.

        Returns:
            Steps that stay as they are, because they or a file below them are damaged.

        Raises:
            StoreLockedError: another writer holds the store.
            BudgetError: ``keep_within`` has no room for the newest checkpoint and the pinned ones.
            StorageError: the system refused; nothing is lost.
        """
        return self._upkeep.compact()

    def delete(self, step: int) -> None:
        """Removes a step for good, pinned or not; what builds on it is written anew first, bit for bit.

        Raises:
            CheckpointNotFoundError: the step is not there.
            Others as `compact`.
        """
        self._upkeep.delete(step)

    def pin(self, step: int) -> None:
        """Keeps a step whatever the retention policy says, until `unpin`; durable.

        Raises:
            CheckpointNotFoundError: the step is not there.
            Others as `compact`.
        """
        self._upkeep.pin(step)

    def unpin(self, step: int) -> None:
        """Lets retention decide again about a step; without a pin nothing happens.

        Raises:
            ConfigError: ``step`` is no whole number.
            Others as `compact`.
        """
        self._upkeep.unpin(step)
