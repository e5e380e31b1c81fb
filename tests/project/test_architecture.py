"""ARCHITECTURE.md speaks of every module there is, and of none that is not."""

from __future__ import annotations

import re

import pytest

from tests.project.tree import PACKAGE, ROOT

PAGE = ROOT / "ARCHITECTURE.md"


def modules() -> list[str]:
    """Modules that hold an idea: kernels and package faces go with what they serve."""
    found = {path.stem for path in PACKAGE.rglob("*.py") if not path.stem.startswith("_")}
    return sorted(name for name in found if not name.endswith("kernels"))


@pytest.fixture(scope="module")
def named() -> set[str]:
    return set(re.findall(r"`(\w+)/?`", PAGE.read_text()))


def test_every_module_has_its_place_in_the_page(named):
    missing = [name for name in modules() if name not in named]
    assert not missing, f"ARCHITECTURE.md does not say what {missing} are for"


def test_a_folder_or_file_that_the_page_names_exists():
    paths = re.findall(r"`((?:\w+/)+\w+\.\w+)`", PAGE.read_text())
    folders = [ROOT, PACKAGE]
    gone = [path for path in paths if not any((folder / path).exists() for folder in folders)]
    assert paths
    assert not gone
