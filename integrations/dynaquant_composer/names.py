"""Which files of a folder are this callback's: those that its ``filename`` could have named.

A folder may hold other things under similar names: a store that the user called ``final.dynaquant``, a copy
of a checkpoint, the checkpoints of a second callback or of another run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from string import Formatter
from typing import Final

from dynaquant_composer.pointer import SUFFIX

__all__ = ["Names"]

#: Placeholders of Composer that stand for whole numbers, and those that stand for seconds.
WHOLE: Final = {
    *("epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch"),
    *("rank", "local_rank", "world_size", "local_world_size", "node_rank"),
}
SECONDS: Final = {"total_wct", "epoch_wct", "batch_wct"}


class Names:
    """The names of one callback's checkpoints.

    Args:
        folder: of the checkpoints; it may be missing.
        filename: as `CheckpointSaver`.
        run_name: of the trainer.

    Attributes:
        folder: as an absolute path.

    Example:
        >>> names = Names(Path("run"), "ep{epoch}/ba{batch}-{run_name}.pt", "digits")
        >>> names.fit("ep1/ba20-digits.pt"), names.fit("best.pt"), names.fit("ep1/ba20-letters.pt")
        (True, False, False)
    """

    def __init__(self, folder: Path, filename: str, run_name: str) -> None:
        self.folder = folder.absolute()
        template = str(PurePath(filename.lstrip("/")))
        self._pattern = re.compile("".join(_pieces(template, run_name)))
        self._depth = template.replace("{run_name}", run_name).count("/")

    def fit(self, name: str) -> bool:
        """Whether a checkpoint may have this name, relative to the folder."""
        return self._pattern.fullmatch(name) is not None

    def files(self) -> list[Path]:
        """The files that belong to our folders, whether they are there or not."""
        found = (path.with_name(path.name.removesuffix(SUFFIX)) for path in self._glob(f"*{SUFFIX}"))
        ours = (file for file in found if self.fit(str(file.relative_to(self.folder))))
        return sorted(file for file in ours if file.with_name(file.name + SUFFIX).is_dir())

    def visible(self) -> list[Path]:
        """The files of such names that are there, whoever wrote them."""
        found = (file for file in self._glob("*") if self.fit(str(file.relative_to(self.folder))))
        return sorted(file for file in found if file.is_file())

    def holds(self, file: Path) -> bool:
        """Whether ``file`` lies in the folder under such a name."""
        path = Path(os.path.normpath(file.absolute()))
        return path.is_relative_to(self.folder) and self.fit(str(path.relative_to(self.folder)))

    def own(self, saved: Iterable[str], loaded: Path | None) -> list[Path]:
        """Those of a run's files that are this callback's, where they lie now.

        A run that was copied or moved recorded names of another place.  It is told by what was loaded: the
        checkpoint lies in this folder, and recorded itself elsewhere under the same name.  What else came
        from elsewhere is another run's and stays as it is.

        Args:
            saved: the names that were recorded, in their order.
            loaded: file of the checkpoint that was loaded, or None.
        """
        split = [self._split(Path(name)) for name in saved]
        homes = {self.folder, self.folder.resolve()}
        if loaded is not None and loaded.is_relative_to(self.folder.resolve()):
            itself = str(loaded.relative_to(self.folder.resolve()))
            homes |= set([home for home, name in split if name == itself][-1:])
        ours = [self.folder / name for home, name in split if home in homes and self.fit(name)]
        return list(dict.fromkeys(ours))

    def _glob(self, name: str) -> Iterator[Path]:
        return self.folder.glob("*/" * self._depth + name)

    def _split(self, file: Path) -> tuple[Path, str]:
        """The folder that a recorded name was for, and the name in it."""
        path = file.absolute()
        return path.parents[min(self._depth, len(path.parents) - 1)], "/".join(path.parts[-self._depth - 1 :])


def _pieces(template: str, run_name: str) -> Iterator[str]:
    """The parts of a regular expression for what `str.format` makes of the template."""
    for literal, field, spec, _ in Formatter().parse(template):
        yield re.escape(literal)
        if field == "run_name":
            yield re.escape(run_name)
        elif field in WHOLE:
            yield r"\d+" if not spec else r"[^/]+"
        elif field in SECONDS:
            yield r"[\d.e+-]+" if not spec else r"[^/]+"
        elif field is not None:  # Composer leaves what it does not know as it is
            yield re.escape("{" + field + "}")
