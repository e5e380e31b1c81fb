"""Rules that hold for every package under integrations/, whichever of the frameworks are installed."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.project.imports import imported_names
from tests.project.tree import INTEGRATIONS, integrations

#: Package -> the frameworks it may import; the first one is what it is for.
FRAMEWORKS = {
    "dynaquant_accelerate": ("accelerate",),
    "dynaquant_composer": ("composer", "torchmetrics"),
    "dynaquant_lightning": ("lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics"),
    "dynaquant_transformers": ("transformers", "accelerate", "peft"),
}
#: What every package may use besides; of the core what plugins build on and its public names.
SHARED = {"torch", "numpy", "packaging", "safetensors"}
CORE = re.compile(r"dynaquant_core(\.(plugins|memory|errors|config)(\.\w+)*|\.\w+)?")

MODULES = integrations()
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def package(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def needs_framework(name: str) -> None:
    framework = FRAMEWORKS[name][0]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed in this environment")


def test_every_package_has_its_line() -> None:
    assert {package(module) for module in MODULES} == set(FRAMEWORKS)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_arrows_point_to_the_core_and_the_framework_only(module: str) -> None:
    path = MODULES[module]
    names = imported_names(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    here = package(module)
    allowed = set(sys.stdlib_module_names) | set(FRAMEWORKS[here]) | SHARED | {here}
    foreign = {name for name in names if name.split(".")[0] not in allowed and not CORE.fullmatch(name)}
    assert not foreign, f"{module} must not import {sorted(foreign)}"


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_without_its_framework_a_package_says_what_to_install(name: str) -> None:
    code = (
        "import sys\n"
        f"for blocked in {FRAMEWORKS[name]!r}:\n"
        "    sys.modules[blocked] = None\n"
        "from dynaquant_core import DynaQuantError\n"
        "try:\n"
        f"    import {name} as package\n"
        "    [getattr(package, public) for public in package.__all__]\n"
        "except DynaQuantError as error:\n"
        "    print(type(error).__name__, str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("DependencyError")
    assert f"pip install '.[{name.removeprefix('dynaquant_')}]'" in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("module", sorted(MODULES))
def test_doctests(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_framework(package(module))
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.REPORT_NDIFF)
    assert failed == 0, f"{failed} example(s) of {module} failed; the difference is printed above"


@pytest.mark.filterwarnings("default")  # what a framework warns of is for its users to see
@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_the_quick_start_runs_twice(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_framework(name)
    page = INTEGRATIONS / name / "README.md"
    snippets = FENCE.findall(page.read_text(encoding="utf-8"))
    assert snippets, f"{page} shows no quick start"
    monkeypatch.chdir(tmp_path)
    again = snippets[:1] if name != "dynaquant_composer" else []  # Composer may refuse a run that is complete
    for source in [*snippets, *again]:
        exec(compile(source, str(page), "exec"), {"__name__": "__snippet__"})
