"""A run whose checkpoints each lie in a folder of their own, whole: with every file that they build on.

A store keeps a chain in one folder and decides what goes.  Here somebody else decides, one folder at a time
and without asking; so each folder gets hard links to the files below its checkpoint, and what this object
needs for the next delta it holds open itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.arithmetic import plainly
from dynaquant_core.config import require
from dynaquant_core.errors import CheckpointNotFoundError, MissingBaseError
from dynaquant_core.methods.base import Draft, Method
from dynaquant_core.state import TensorSpec
from dynaquant_core.store.catalogue import Catalogue, Entry, Scan, read_entry
from dynaquant_core.store.chain import MAX_DEPTH, Chain, open_chain
from dynaquant_core.store.disk import file_identity, require_space
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.kept import KeptFile
from dynaquant_core.store.meta import BaseLink, PartMeta
from dynaquant_core.store.names import checkpoint_name, parse_name
from dynaquant_core.store.parts import Base, Division, HeldPart, Settings, written_by
from dynaquant_core.store.prepare import prepare
from dynaquant_core.store.remarks import Remarks
from dynaquant_core.store.restore import is_host, part_of_state, whole_state
from dynaquant_core.store.saving import Saving, Sealed
from dynaquant_core.store.writer import next_base, write_file

__all__ = ["Trail", "find_link", "open_link", "read_link"]

logger = logging.getLogger(__name__)


class Trail:
    """Writes and reads checkpoints that each stand alone in a folder, as deltas where that is smaller.

    One thread may call it at a time.  Folders are not locked here: whoever calls `commit` sees to that.

    Args:
        method, moments, exact, max_chain: as `CheckpointStore`.

    Attributes:
        loaded: the checkpoint last saved or loaded through this object; None before the first.
        lineage: names what the next delta may build on, by steps and how their weights were written: the same
            in each process that holds the same; "" for nothing.

    Raises:
        ConfigError: an argument is unknown, ill-typed or out of range.

    Example:
        >>> trail = Trail(method="exact")
        >>> folder = Path("checkpoint-100"); folder.mkdir()
        >>> saving = trail.begin(100, {"weight": torch.ones(32, 32)})
        >>> info, link = trail.commit(saving.seal(saving.draft()), folder)
        >>> info.kind, read_link(folder, link)["weight"].sum().item()
        ('key', 1024.0)
    """

    def __init__(
        self,
        *,
        method: str | Mapping[str, Any] | Method | None = None,
        moments: str = "8bit",
        exact: str | Sequence[str] = (),
        max_chain: int = 8,
    ) -> None:
        good = type(max_chain) is int and 0 <= max_chain < MAX_DEPTH
        require(good, f"max_chain must be a whole number from 0 to {MAX_DEPTH - 1}, got {max_chain!r}.")
        self.loaded: CheckpointInfo | None = None
        self.lineage = ""
        self._settings = Settings.of(method, moments, exact)
        self._homes: tuple[str, ...] = ()
        self._max_chain = max_chain
        self._base: Base | None = None
        self._written: PartMeta | None = None  # how the weights of what was loaded or saved last were
        self._files: list[KeptFile] = []
        self._sequence = 0
        self._remarks = Remarks(logging.INFO)  # a framework's own patterns may cover nothing
        self._links = True  # until a link on one and the same device is refused

    @property
    def method(self) -> Method:
        """The method of the next save: the one asked for, else that of the checkpoint to go on from."""
        return self._settings.after(self._written).weights

    @property
    def names(self) -> list[str]:
        """Names of the files that the checkpoint of `loaded` stands on in its folder, itself last."""
        return [file.path.name for file in self._files]

    def begin(
        self,
        step: int,
        state: Any,
        *,
        gradients: Mapping[str, Tensor] | None = None,
        model: Any = None,
        optimizers: Iterable[Optimizer] = (),
        like: Saving | None = None,
    ) -> Saving:
        """Begins a save, to be drafted, sealed and given to `commit`.

        Args:
            step: completed optimizer steps.
            state: a tree of tensors and plain objects (see `state.flatten`).
            gradients: EMA of the gradient by parameter name, for sensitivity.
            model: a module, or name -> module, for layer types; None: by tensor name.
            optimizers: those whose tensors are in the state, which knows their parameters by numbers.
            like: a save begun before of the same tensors, whose drafts this one is to take.

        Raises:
            UnsupportedStateError: the tree holds an object that a checkpoint cannot hold.
        """
        settings = self._settings.after(self._written)
        prepared = prepare(
            settings,
            step,
            state,
            gradients=gradients,
            model=model,
            optimizers=optimizers,
            homes=self._homes,
        )
        self._remarks.on(prepared, settings, gradients, model)
        last = self._base
        return prepared.saving(self._base_for(prepared.division, like), None, last)

    @plainly
    def commit(self, sealed: Sealed, folder: Path) -> tuple[CheckpointInfo, BaseLink]:
        """Puts what ``sealed`` builds on into ``folder`` and writes it there; files there stay.

        Returns:
            Its info, and what to find it by.

        Raises:
            StorageError: the system refused; links that were made stay.
            MissingBaseError: something else was loaded since the save began.
        """
        link = sealed.link
        if link is not None and (self._base is None or self._base.link != link):
            raise MissingBaseError(
                f"The save of step {sealed.step} builds on the checkpoint of step {link.step}, which is no "
                "longer held; save again to write a key checkpoint."
            )
        require_space(folder, sealed.most, sealed.estimate)
        kept = self._put(folder) if link is not None else []
        sequence = max(self._sequence + 1, Catalogue(folder).scan().next_sequence())
        meta = sealed.meta(sequence)
        path = folder / checkpoint_name(meta.step, meta.sequence)
        parts, seconds = write_file(path, sealed, meta)
        entry = read_entry(path)
        self._base = next_base(entry, sealed.base, parts)
        self._written = sealed.weights
        self.lineage = _grown(self.lineage if link else "", sealed.step, sealed.parts.get("weights"))
        self._files = [*kept, KeptFile.of(entry, file_identity(path))]
        self._sequence = sequence
        self.loaded = replace(entry.info, seconds=seconds)
        return self.loaded, self._base.link

    def follow(self, saving: Saving, draft: Draft) -> None:
        """Holds what a reader of ``draft`` will hold, where another process writes it.

        Drafts of the next save are then the writer's own; nothing can be committed on this base.
        """
        draft.detach()
        base = None if draft.is_key else saving.base
        meta = written_by(self.method, draft.config)
        specs = {name: TensorSpec.of(tensor) for name, tensor in saving.live.items()}
        self._written = meta
        held = {"weights": HeldPart(meta, specs, draft.encode()[1])}  # streams are not asked for: no coding
        self._base = Base(
            link=BaseLink(saving.step, 0, ""),
            depth=base.depth + 1 if base else 0,
            parts=held,
            key_bytes=base.key_bytes if base else int(draft.size),
            newest_bytes=int(draft.size),
            spared=base.spared if base else 0,
        )
        self.lineage = _grown(self.lineage if base else "", saving.step, meta if saving.live else None)
        self._files = []

    def share(self, saving: Saving, *, key_bytes: int, newest_bytes: int, spared: int) -> None:
        """Takes over what another process knows of the base of ``saving``: bytes as stored (`parts.Base`)."""
        if saving.base is not None:
            base = replace(saving.base, key_bytes=key_bytes, newest_bytes=newest_bytes, spared=spared)
            saving.base = self._base = base

    def keep_exact(self, pattern: str) -> None:
        """Keeps what a pattern of names covers bit for bit, too; the same one again changes nothing."""
        exact = tuple(dict.fromkeys([*self._settings.exact, pattern]))
        self._settings = replace(self._settings, exact=exact)

    def compress_only(self, homes: Iterable[str]) -> None:
        """Keeps bit for bit what lies elsewhere than in these parts of a state (`names_elsewhere`)."""
        self._homes = tuple(homes)

    def leave_method(self) -> None:
        """Goes back to the method of the arguments, whatever was loaded or saved with another."""
        self._written = None

    def load(self, folder: Path, link: BaseLink, device: str | torch.device | None = None) -> Any:
        """The state of one checkpoint; the next save may be a delta against it.

        Raises:
            CheckpointNotFoundError, MissingBaseError, CorruptFileError, StorageError: it cannot be read.
        """
        with open_link(folder, link, self._settings.weights) as chain:
            held = chain.hold(whole=is_host(device))
            state = whole_state(chain.last, held, device)
            files = [KeptFile.of(link.entry, link.identity) for link in chain.links]
            self._base, self._files = chain.base(held), files
            self._written = chain.last.weights
            self._sequence = max(self._sequence, chain.last.meta.sequence)
            self.lineage = link.digest
            self.loaded = chain.last.entry.info
        return state

    def forget(self) -> None:
        """Lets go of files and codes; the next save is a key."""
        self._base, self.lineage = None, ""
        for file in self._files:
            file.close()
        self._files = []

    def _put(self, folder: Path) -> list[KeptFile]:
        kept = [file.put(folder) for file in self._files]
        pairs = zip(self._files, kept, strict=True)
        if any(old.named and old.device == new.device and not new.linked for old, new in pairs):
            self._links = False
            logger.warning(
                "%s takes no hard links, so the files below the checkpoint were copied; from now on every "
                "checkpoint is written as a key, which is smaller.", folder,
            )  # fmt: skip
        return kept

    def _base_for(self, division: Division, like: Saving | None) -> Base | None:
        base = self._base
        if base is None or not self._links or base.depth >= self._max_chain or not base.fits(division):
            return None
        if like is not None and like.base is base:
            return base
        if not all(file.intact for file in self._files):
            logger.warning("a file that the next checkpoint would build on was changed: a key is written")
            self.forget()
            return None
        return base if all(file.named for file in self._files) else None  # a key is smaller than copies


def _grown(lineage: str, step: int, weights: PartMeta | None) -> str:
    """The lineage after one more checkpoint, by how its weights were written: with the base that says all.

    Processes may come to different ends of one save: one gives up waiting, and the other commits.
    """
    written = None if weights is None else weights.as_dict()
    return xxhash.xxh3_128_hexdigest(f"{lineage}>{step} {json.dumps(written, sort_keys=True)}".encode())


def find_link(scan: Scan, link: BaseLink, folder: Path) -> Entry:
    """The file of a checkpoint: by its digest, else what was written anew for the same step and sequence.

    Raises:
        CheckpointNotFoundError: it is not there.
        CorruptFileError: what bears its name is damaged.
    """
    exact = scan.by_digest(link.digest)
    same = [
        entry for entry in scan.entries if (entry.step, entry.meta.sequence) == (link.step, link.sequence)
    ]
    found = exact or max(same, key=lambda entry: entry.order, default=None)
    if found is not None:
        return found
    for item in scan.damaged:
        hint = parse_name(item.name)
        if hint is not None and (hint.step, hint.sequence) == (link.step, link.sequence):
            return read_entry(folder / item.name)  # raises what is wrong with it
    raise CheckpointNotFoundError(
        f"The file of step {link.step} (sequence {link.sequence}, digest {link.digest}) is not in "
        f"{str(folder)!r}; bring it back or take another checkpoint."
    )


@contextmanager
def open_link(folder: Path, link: BaseLink, own: Method | None = None) -> Iterator[Chain]:
    """Opens one checkpoint and all it builds on; see `find_link` and `chain.open_chain`."""
    scan = Catalogue(folder).scan()
    with open_chain(scan, find_link(scan, link, folder), own) as chain:
        yield chain


def read_link(
    folder: Path,
    link: BaseLink,
    *,
    names: str | Iterable[str] | None = None,
    device: str | torch.device | None = None,
) -> Any:
    """The state of one checkpoint, or the part of it that ``names`` cover (see `CheckpointStore.load`)."""
    with open_link(folder, link) as chain:
        if names is not None:
            return part_of_state(chain, names, device)
        return whole_state(chain.last, chain.hold(whole=is_host(device)), device)
