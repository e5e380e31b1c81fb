"""What belongs to this repository: the walk that the project tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dynaquant_core"
INTEGRATIONS = ROOT / "integrations"

#: What tools leave behind; kept in step with .gitignore by `test_the_walk_skips_what_git_ignores`.
IGNORED = (
    "__pycache__",
    "*.nbi",
    "*.nbc",
    ".venv",
    ".venv-*",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "build",
    "dist",
    "*.egg-info",
    "runs",
)


def files(root: Path = ROOT) -> Iterator[Path]:
    """Every file of the repository, in a stable order, without version control and leftovers."""
    for path in sorted(root.iterdir()):
        if path.name == ".git" or any(path.match(pattern) for pattern in IGNORED):
            continue
        if path.is_dir():
            yield from files(path)
        elif path.is_file():
            yield path


def text_files() -> Iterator[tuple[Path, str]]:
    """(path, text) of every file that is text."""
    for path in files():
        data = path.read_bytes()
        if b"\0" not in data:
            yield path, data.decode("utf-8")


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the core; a package's own name stands for its __init__."""
    return _modules(PACKAGE, ROOT)


def integrations() -> dict[str, Path]:
    """The same of the packages for training frameworks, which lie in a folder of their own."""
    return _modules(INTEGRATIONS, INTEGRATIONS)


def _modules(folder: Path, base: Path) -> dict[str, Path]:
    found = {}
    for path in files(folder):
        if path.suffix == ".py":
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
