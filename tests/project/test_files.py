"""Rules about the repository's own files: short, free of machine paths, shipped in the wheel."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project.tree import IGNORED, INTEGRATIONS, PACKAGE, ROOT, integrations, modules, text_files

LINES_A_FILE = 400
#: What a command writes, people do not read line by line.
GENERATED = "docs/comparison/"
MEDIAN_LINES = 180

# Spelt in pieces, so that this file passes its own test.
MACHINE_FOLDERS = ("work", "home", "root", "opt", "tmp", "mnt", "Users", "scratch")
MACHINE_PATH = re.compile(rf"(?<![\w.~$}}*-])/(?:{'|'.join(MACHINE_FOLDERS)})(?:/|\b(?![\w-]))")


def test_what_a_run_leaves_behind_is_not_in_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing tells what belongs to it")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    left = [name for name in listed.stdout.splitlines() if name.endswith((".dq", ".lock"))]
    assert [name for name in left if not name.startswith("tests/fixtures/")] == []


def test_no_file_is_long() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path, text in text_files()
        if (lines := text.count("\n")) > LINES_A_FILE
        and not path.relative_to(ROOT).as_posix().startswith(GENERATED)
    }
    assert too_long == {}


def test_the_median_module_is_short() -> None:
    paths = [*modules().values(), *integrations().values()]
    lines = [path.read_text(encoding="utf-8").count("\n") for path in paths]
    assert statistics.median(lines) < MEDIAN_LINES


def test_nobody_is_told_to_install_us_from_an_index() -> None:
    """Where no package is ours, a stranger's may be."""
    told = re.compile(r"pip install[^\n]*?[ '\"=](?:--upgrade )?dynaquant\b(?![_/.-])")
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path, text in text_files()
        for hit in told.finditer(text)
    ]
    assert found == []


def test_no_file_mentions_a_machine_path() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit.group()}"
        for path, text in text_files()
        for hit in MACHINE_PATH.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize("folder", MACHINE_FOLDERS)
def test_the_search_for_machine_paths_finds_them(folder: str) -> None:
    assert MACHINE_PATH.search(f"open('/{folder}/file')")
    assert not MACHINE_PATH.search(f"tests/{folder}/file")


def test_the_walk_skips_what_git_ignores() -> None:
    rules = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert sorted(rule.rstrip("/") for rule in rules) == sorted(IGNORED)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this tree, without a network."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("dynaquant-*.whl"))


def test_the_wheel_holds_every_module_the_configs_and_py_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    wanted = {str(path.relative_to(ROOT)) for path in modules().values()}
    wanted |= {str(path.relative_to(INTEGRATIONS)) for path in integrations().values()}
    wanted |= {f"{name}/py.typed" for name in integrations() if "." not in name}
    configs = [path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml")]
    wanted |= {f"dynaquant_core/{path.as_posix()}" for path in configs}
    assert wanted | {"dynaquant_core/py.typed", "dynaquant_core/experiments/plan_figures.json"} <= shipped
    assert "dynaquant_core/configs/quickstart.yaml" in shipped
    assert not any(name.startswith("tests/") for name in shipped)


def test_the_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import dynaquant_core.cli as cli\n"
        f"assert cli.__file__.startswith({str(site)!r}), cli.__file__\n"
        "sys.exit(cli.main(['--version']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dynaquant ")


def test_the_package_carries_its_types() -> None:
    assert (PACKAGE / "py.typed").is_file()
