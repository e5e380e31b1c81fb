"""warm fills the cache that a cold process reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynaquant_core.cli.bench import count
from dynaquant_core.cli.choices import config_of, method_of
from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.registry import DEFAULT_METHOD
from tests.cli.words import Shell


def test_warm_leaves_only_compiled_kernels_behind(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert shell("warm").status == 0
    assert list(tmp_path.iterdir()) == []


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
