"""The house of ARCHITECTURE.md, enforced: arrows point down only, and there is no circle."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.project.imports import PACKAGE_NAME, all_imports, find_circle, imported_names, inner_edges, room
from tests.project.tree import ROOT, modules

GROUND = {
    "arithmetic",
    "borrowed",
    "config",
    "cuda_streams",
    "device_jit",
    "errors",
    "handlers",
    "hooks",
    "jit",
    "lazy",
    "threads",
}
PURE = GROUND | {"coding", "delta", "quantize", "state"}
LIBRARY = PURE | {"methods", "format", "search", "store", "training"}

#: Room -> the rooms it may import.  A new room gets a line here and a place in ARCHITECTURE.md.
MAY_IMPORT: dict[str, set[str]] = {
    "arithmetic": set(),
    "borrowed": set(),
    "device_jit": {"device_probe"},
    "device_probe": set(),
    "errors": set(),
    "config": {"errors"},
    "handlers": set(),
    "hooks": set(),
    "jit": set(),
    "lazy": set(),
    "cuda_streams": set(),
    "threads": {"arithmetic", "cuda_streams", "errors"},
    "coding": GROUND,
    "quantize": GROUND,
    "state": GROUND,
    "delta": GROUND | {"coding"},
    "format": GROUND | {"coding", "state"},
    "methods": PURE,
    "search": PURE | {"methods"},
    "store": PURE | {"methods", "format"},
    "training": LIBRARY - {"training"},
    "memory": GROUND | {"quantize", "state"},
    "files": LIBRARY - {"training"},
    "comm": GROUND | {"state"},
    "plugins": LIBRARY | {"files", "comm", "memory"},
    "": LIBRARY | {"files"},  # the package's own __init__: the public names
    "experiments": LIBRARY | {"", "files", "comm", "memory"},
    "cli": LIBRARY | {"", "files", "plugins", "experiments"},
}

#: Import name -> rooms that may use it; None: any room.  The core knows no framework but torch.
THIRD_PARTY: dict[str, set[str] | None] = {
    "torch": None,
    "numpy": None,
    "numba": None,
    "triton": {
        "comm",
        "device_probe",
        "memory",
        "quantize",
    },  # comes with torch for CUDA
    "xxhash": None,
    "typing_extensions": None,  # torch requires it
    "zstandard": None,
    "safetensors": {"store", "cli", "experiments"},
    "pydantic": {"experiments", "cli"},
    "pydantic_core": {"experiments"},  # comes with pydantic: its error types
    "yaml": {"experiments", "cli"},
    "typer": {"cli"},
    "rich": {"cli", "experiments"},
    "matplotlib": {"experiments"},
    "PIL": {"experiments"},
    "sklearn": {"experiments"},
    "psutil": {"experiments"},
    "tokenizers": {"experiments"},  # lazily: models of transformers, an extra
    "transformers": {"experiments"},
    "cupy": {"experiments"},
    "cuml": {"experiments"},
}

IMPORTS = all_imports()
EDGES = inner_edges(IMPORTS)


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_arrows_point_down(module: str) -> None:
    here = room(module)
    assert here in MAY_IMPORT, f"{here!r} is a new room: give it a line in MAY_IMPORT and in ARCHITECTURE.md"
    upward = {target for target in EDGES[module] if room(target) not in MAY_IMPORT[here] | {here}}
    assert not upward, f"{module} must not import {sorted(upward)}"


def test_rooms_form_no_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for module, targets in EDGES.items():
        rooms.setdefault(room(module), set()).update(room(target) for target in targets)
    between = {here: targets - {here} for here, targets in rooms.items()}
    assert find_circle(between) == []


def test_modules_form_no_circle() -> None:
    assert find_circle(EDGES) == []


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_core_imports_no_framework_but_torch(module: str) -> None:
    here = room(module)
    for name in {imported.split(".")[0] for imported in IMPORTS[module]}:
        if name == PACKAGE_NAME or name in sys.stdlib_module_names:
            continue
        assert name in THIRD_PARTY, f"{module} imports {name}, which is not a dependency of the core"
        rooms = THIRD_PARTY[name]
        assert rooms is None or here in rooms, f"{module} imports {name}, which belongs to {sorted(rooms)}"


def test_import_of_the_package_stays_light() -> None:
    """What a training script pays for ``import dynaquant_core`` is torch and little else."""
    code = "import sys, dynaquant_core; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"matplotlib", "PIL", "typer", "rich", "sklearn", "pydantic", "cupy", "cuml"}
    heavy |= {"accelerate", "composer", "lightning", "peft", "pytorch_lightning", "transformers"}
    assert heavy & set(done.stdout.split()) == set()


def test_every_room_is_on_the_plan() -> None:
    drawing = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    missing = {room(module) for module in modules()} - {""} - set(re.findall(r"\w+", drawing))
    assert not missing, f"the drawing in ARCHITECTURE.md lacks {sorted(missing)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b", {"a.b"}),
        ("from a import b as c", {"a.b"}),
        ("from .near import x", {"p.q.near.x"}),
        ("from ..far import x", {"p.far.x"}),
        ("def f():\n    from a import lazy", {"a.lazy"}),
    ],
)
def test_the_reader_sees_every_kind_of_import(source: str, expected: set[str]) -> None:
    assert imported_names(source, "p.q.module", is_package=False) == expected


def test_the_reader_resolves_relative_imports_of_packages() -> None:
    assert imported_names("from .near import x", "p.q", is_package=True) == {"p.q.near.x"}


def test_circles_are_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
