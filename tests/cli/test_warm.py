"""warm fills the cache that a cold process reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from dynaquant_core.cli.bench import count
from dynaquant_core.cli.choices import config_of, method_of
from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.registry import DEFAULT_METHOD
from tests import programs
from tests.cli.words import Shell


def test_warm_leaves_only_compiled_kernels_behind(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert shell("warm").status == 0
    assert list(tmp_path.iterdir()) == []


def test_a_training_compiles_nothing_after_warm() -> None:
    """Neither one that stays on a lattice, nor types and symbols that are rarer than others."""
    done = programs.run(["-m", "tests.cli.after_warm"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.skipif(
    not hasattr(numba.config, "CACHE_LOCATOR_CLASSES"), reason="this Numba always finds a folder"
)
def test_warm_where_nothing_can_be_kept_is_one_line() -> None:
    """It said that kernels are cached, and every process of the job compiled them anew."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    command = [
        sys.executable,
        "-c",
        "import sys; from dynaquant_core.cli import main; sys.exit(main(['warm']))",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dynaquant: error: ")
    assert "NUMBA_CACHE_DIR" in last


@pytest.mark.slow
def test_nothing_is_compiled_after_warm(tmp_path: Path) -> None:
    """A second process with the same cache finds every kernel in it."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    code = "import sys; from dynaquant_core.cli import main; sys.exit(main(['warm']))"
    listings = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
        listings.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")})
    assert listings[0]
    assert listings[0] == listings[1]


@pytest.mark.parametrize("word", ["0", "-1", "1.5", "0.0001k", "1.5.2M", ".5M", "1e3", "", "M", "\u0663"])
def test_counts_are_positive_whole_numbers(word: str) -> None:
    with pytest.raises(ConfigError):
        count(word)


def test_settings_from_words() -> None:
    assert config_of(bins="bf16").bins == "bf16"
    assert config_of(prune=0.25).bins == 16
    assert method_of(["exact"]) == "exact"
    assert method_of(["dynaquant", "sigma=0.5"]) == {"name": "dynaquant", "sigma": 0.5}
    assert method_of(["sigma=0.5"]) == {"name": DEFAULT_METHOD, "sigma": 0.5}
