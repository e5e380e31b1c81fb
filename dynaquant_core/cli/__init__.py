"""The command line: one module a group of commands, each thin over the store and the experiments.

Nothing here knows a byte of the format or a rule of the search; it reads words, calls the rooms below through
their public names and prints tables.  ``typer`` and ``rich`` are imported here and nowhere below.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 good, 1 a problem, 2 bad usage.

    Args:
        argv: the words after the program's name; None: those of this process.
    """
    from dynaquant_core.cli.entry import run

    return run(argv)
