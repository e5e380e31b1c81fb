"""Every example in every docstring runs, each module's in an empty folder of its own."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.project.tree import modules


@pytest.mark.parametrize("name", sorted(modules()))
def test_doctests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.REPORT_NDIFF)
    assert failed == 0, f"{failed} example(s) of {name} failed; the difference is printed above"
