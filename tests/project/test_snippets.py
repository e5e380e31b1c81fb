"""What the pages tell a reader to type works: Python snippets run, commands exist with those options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from dynaquant_core.cli.app import app
from tests.project.tree import ROOT, files

PAGES = [path for path in files() if path.suffix == ".md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND_LINE = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*dynaquant (.+?)(?:\s+#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def fences(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, fence.start()) + 1}", fence[2])
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for fence in FENCE.finditer(text)
        if fence[1] == language
    ]


#: Those of the integrations need their framework; tests/integrations runs them where it is installed.
SNIPPETS = [(place, source) for place, source in fences("python") if not place.startswith("integrations/")]
COMMANDS = [(place, line[1]) for place, block in fences("console") for line in COMMAND_LINE.finditer(block)]


@pytest.mark.parametrize(("place", "source"), SNIPPETS, ids=[place for place, _ in SNIPPETS])
def test_python_snippets_run(
    place: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(source, place, "exec"), {"__name__": "__snippet__"})


def test_the_readme_has_snippets_and_commands() -> None:
    assert any(place.startswith("README") for place, _ in SNIPPETS)
    assert any(place.startswith("README") for place, _ in COMMANDS)


@pytest.mark.parametrize(("place", "line"), COMMANDS, ids=[f"{p} {c}" for p, c in COMMANDS])
def test_commands_exist_with_these_options(place: str, line: str) -> None:
    commands = typer.main.get_command(app).commands
    words = [word for word in shlex.split(line) if word not in {"--version", "--debug"}]
    if not words:
        return
    assert words[0] in commands, f"{place}: there is no command {words[0]!r}"
    command = commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words[1:] if re.match(r"-{1,2}[a-z]", word)}
    assert used <= known, f"{place}: {words[0]} has no {sorted(used - known)}"


@pytest.mark.parametrize("page", ["README.md", "docs/experiments.md"])
def test_runs_of_other_configs_have_folders_of_their_own(page: str) -> None:
    """One after the other, behind `make demo`, as a reader types them: a folder is of one config."""
    typed = [shlex.split(line) for place, line in COMMANDS if place.startswith(page)]
    changed = [words for name, *words in typed if name == "run" and any("=" in word for word in words)]
    outputs = [word for words in changed for word in words if word.startswith("output=")]
    assert len(set(outputs)) == len(changed) > 0


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
