"""The application: one line a command, in the order in which people meet them."""

from __future__ import annotations

from typing import Annotated

import typer

from dynaquant_core.cli import bench, convert, diff, importing, look, pack, plan, run, verify, warm
from dynaquant_core.cli.output import write_line

__all__ = ["app"]

#: Panels of the help page.
RUN, LOOK, CONVERT, SPEED = "Run", "Look", "Convert", "Speed"

app = typer.Typer(
    name="dynaquant",
    help="Compressed, crash-safe checkpoints for deep-learning training.",
    epilog=(
        "PATH is a store, a framework's output folder, one checkpoint of either, or a .dq file.  "
        "Exit: 0 good, 1 a problem, 2 bad usage."
    ),
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("run", rich_help_panel=RUN)(run.run)
app.command("plan", rich_help_panel=RUN)(plan.plan)
app.command("log", rich_help_panel=LOOK)(look.log)
app.command("show", rich_help_panel=LOOK)(look.show)
app.command("diff", rich_help_panel=LOOK)(diff.diff)
app.command("verify", rich_help_panel=LOOK)(verify.verify)
app.command("export", rich_help_panel=CONVERT)(convert.export)
app.command("import", rich_help_panel=CONVERT)(importing.import_native)
app.command("compact", rich_help_panel=CONVERT)(convert.compact)
app.command("compress", rich_help_panel=CONVERT)(pack.compress)
app.command("decompress", rich_help_panel=CONVERT)(pack.decompress)
app.command("bench", rich_help_panel=SPEED)(bench.bench)
app.command("warm", rich_help_panel=SPEED)(warm.warm)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[  # noqa: ARG001 - taken out of the words before parsing; listed here for the help page
        bool, typer.Option("--debug", help="Show tracebacks and debug messages.")
    ] = False,
) -> None:
    """Compressed, crash-safe checkpoints for deep-learning training."""
    if version:
        write_line(f"dynaquant {installed_version()}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        write_line(context.get_help())
        raise typer.Exit(2)


def installed_version() -> str:
    """Version of the installed distribution, or what a checkout that was never installed can say."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dynaquant")
    except PackageNotFoundError:
        return "(not installed)"
