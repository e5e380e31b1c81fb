"""What is written about this package is true: its examples run."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "integrations" / "dynaquant_lightning"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'integrations'}",
    "OMP_NUM_THREADS": "1",
}
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", sorted(path.stem for path in PACKAGE.glob("*.py")))
def test_doctests(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = "dynaquant_lightning" if name == "__init__" else f"dynaquant_lightning.{name}"
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_the_page_s_snippets_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SNIPPETS
    for number, source in enumerate(SNIPPETS):
        exec(compile(source, f"snippet {number}", "exec"), {"__name__": "__snippet__"})


def test_the_example_is_killed_and_goes_on(tmp_path):
    command = [sys.executable, ROOT / "examples" / "lightning_trainer.py", tmp_path]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "ended with signal 9" in done.stdout
    assert "goes on from last.ckpt" in done.stdout
    sizes = re.search(r"([\d,]+) bytes native, ([\d,]+) bytes ours", done.stdout)
    native, ours = (int(text.replace(",", "")) for text in sizes.groups())
    assert ours * 4 < native
