"""From words to an exit status: every failure ends here, as one line.

0 is good, 1 a problem (one line says what and what to do), 2 bad usage.  ``--debug``, anywhere among the
options, shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from dynaquant_core.cli.messages import complain, show_messages
from dynaquant_core.errors import DynaQuantError

__all__ = ["BAD_USAGE", "GOOD", "PROBLEM", "run"]

GOOD, PROBLEM, BAD_USAGE = 0, 1, 2

#: What typer makes of an interrupt, without a word; no command of ours gives it.
INTERRUPTED = 130

#: Base of the parser's own complaints.  Reached through typer, which brings its parser along in some
#: releases and depends on it in others.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run(argv: Sequence[str] | None = None) -> int:
    """Parses ``argv`` (None: this process's words), runs the command, returns the exit status."""
    words, debug = split_debug(list(sys.argv[1:] if argv is None else argv))
    show_messages(debug=debug)
    try:
        return dispatch(words)
    except UsageError as error:
        complain(usage_line(error))
        return BAD_USAGE
    except DynaQuantError as error:
        return report(error, one_line(error), debug=debug)
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except SystemExit as ended:  # what typer makes of such a reader
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return GOOD
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted; what was committed stays.")
        return PROBLEM
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug is one line too
        return report(
            error,
            f"unexpected {type(error).__name__}: {one_line(error)} This is a bug: please report it with the "
            "output of the same command and --debug.",
            debug=debug,
        )


def dispatch(words: list[str]) -> int:
    """Runs the command; commands raise on problems and may ``typer.Exit`` with a status of their own."""
    from dynaquant_core.cli.app import app

    command = typer.main.get_command(app)
    status = command.main(args=words, prog_name="dynaquant", standalone_mode=False)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    return status if isinstance(status, int) else GOOD


def split_debug(words: list[str]) -> tuple[list[str], bool]:
    """Takes ``--debug`` out of the words before a lone ``--``, wherever it stands."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def report(error: BaseException, line: str, *, debug: bool) -> int:
    """Says what went wrong on stderr; with ``debug`` where, first."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    complain(line)
    return PROBLEM


def one_line(error: BaseException) -> str:
    """The error's message with its line breaks folded away; its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def usage_line(error: Exception) -> str:
    """The parser's complaint and where help is."""
    told = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "dynaquant"
    return f"{' '.join(told.split()).rstrip('.')}. See `{command} --help`."
