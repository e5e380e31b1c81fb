"""The examples: they compare lives that ended as they had to, or say that there is nothing to compare."""

from __future__ import annotations

import importlib.util
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = {
    "accelerate_loop": "accelerate",
    "composer_trainer": "composer",
    "lightning_trainer": "lightning",
    "transformers_trainer": "transformers",
}
FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=sorted(EXAMPLES))
def example(request: pytest.FixtureRequest) -> ModuleType:
    for needed in (EXAMPLES[request.param], "sklearn"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed in this environment")
    spec = importlib.util.spec_from_file_location(request.param, FOLDER / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_its_line() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXAMPLES)


def test_a_folder_that_is_not_empty_is_refused(example: ModuleType, tmp_path: Path) -> None:
    """The first life would go on from its own end, and end at once."""
    (tmp_path / "native").mkdir()
    with pytest.raises(SystemExit, match="is not empty"):
        example.main(tmp_path)
    assert not any((tmp_path / "native").iterdir())


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_a_life_that_ends_otherwise_ends_the_example(
    example: ModuleType, ending: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of the script one that ends at once: it would take seconds to import its framework."""
    script = tmp_path / "short.py"
    script.write_text(f"import os, sys\n{ending}\n")
    monkeypatch.setattr(example, "__file__", str(script))
    example.life(ends=status)
    with pytest.raises(SystemExit, match=f"ended with status {status}, expected 0"):
        example.life()
