"""Where an experiment comes from: a YAML file or a shipped name, and ``key=value`` overrides on top."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynaquant_core.config import nearest
from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.reading import read_yaml
from dynaquant_core.methods.registry import DEFAULT_METHOD
from dynaquant_core.store.disk import path_from

__all__ = ["apply_overrides", "load_experiment", "set_dotted", "shipped_configs"]


def shipped_configs() -> dict[str, Path]:
    """Name -> file of the configs that come with the project (in the wheel, or beside the package).

    A config in a folder has its folder's name in front: ``restore/gpt_10``.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "configs", package.parent / "configs"):
        if folder.is_dir():
            files = sorted(folder.rglob("*.yaml"))
            return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}
    return {}


def load_experiment(config: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Reads an experiment.

    Args:
        config: a YAML file, or the name of a shipped config (``quickstart``).
        overrides: ``key.sub=value``; the value is read as YAML.

    Raises:
        ConfigError: no such file or name, text that is not YAML, a key that is there twice, unknown or
            ill-typed, a grid without a key, or an override of what the grid or the axis sets in every run.
    """
    try:
        path = _find(config)
    except OSError as error:
        raise ConfigError(f"{config}: cannot be looked at: {error.strerror}.") from None
    try:
        data = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, found {type(data).__name__}.")
    data = apply_overrides(data, overrides)
    if path.suffix != ".json" or any(override.partition("=")[0].strip() == "grid" for override in overrides):
        _require_filled_grid(data, path)  # the config.json of a run names every key, this one as {}
    experiment = validate(data, str(path))
    for override in overrides:
        _require_effect(override.partition("=")[0].strip(), experiment)
    return experiment


def _find(config: str | Path) -> Path:
    path = path_from("config", config)
    if path.is_file():
        return path
    shipped = shipped_configs()
    if str(config) in shipped:
        return shipped[str(config)]
    if path.is_dir():
        raise ConfigError(f"{config}: is a folder; give a YAML file, or the name of a shipped config.")
    if path.exists():
        raise ConfigError(f"{config}: is no regular file; copy what it gives to one first.")
    hint = nearest(str(config), list(shipped))
    raise ConfigError(f"{config}: no such file and no shipped config of that name; {hint}")


def _require_filled_grid(data: dict[str, Any], path: Path) -> None:
    """Refuses a grid that somebody wrote and that varies nothing: its values were lost on the way."""
    grid = data.get("grid")
    if isinstance(grid, (dict, list)) and not (any(grid) if isinstance(grid, list) else grid):
        raise ConfigError(
            f"{path}: grid: expected a mapping from dotted keys to lists of values, got {grid!r}; name what "
            "varies, leave grid out, or override it with grid=null for none."
        )


def _require_effect(key: str, experiment: Experiment) -> None:
    """Refuses an override that no run would notice: a run takes the values of the grid and of the axis."""
    set_by = {"axis": [[] if experiment.axis is None else [experiment.axis.key]]}
    crossings = experiment.grid if isinstance(experiment.grid, list) else [experiment.grid]
    set_by["grid"] = [list(crossing) for crossing in crossings]
    wanted = "seed" if key == "seeds" else key
    for section, parts in set_by.items():
        if all(any(f"{wanted}.".startswith(f"{name}.") for name in names) for names in parts):
            raise ConfigError(
                f"override {key!r}: the {section} sets it in every run, so that this would change nothing; "
                f"override {section} instead."
            )


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``data`` with every ``key.sub=value`` set, whole sections before what is in them.

    ``data`` itself is left alone.

    Raises:
        ConfigError: an override without ``=``, with an empty key, or whose value is not YAML.

    Example:
        >>> apply_overrides({"method": "dynaquant"}, ["method.coder=paper", "threshold=0.05"])
        {'method': {'name': 'dynaquant', 'coder': 'paper'}, 'threshold': 0.05}
    """
    if {"seed", "seeds"} <= {override.partition("=")[0].strip() for override in overrides}:
        raise ConfigError("overrides: give seed or seeds, not both.")
    for override in sorted(overrides, key=_depth):
        key, equals, text = override.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise ConfigError(f"override {override!r}: expected key=value, for example threshold=0.01.")
        data = set_dotted(data, key.strip(), read_yaml(text, f"override {key.strip()!r}"))
    return data


def _depth(override: str) -> int:
    return override.partition("=")[0].count(".")


def set_dotted(data: dict[str, Any], key: str, value: Any, where: str = "override") -> dict[str, Any]:
    """A copy of ``data`` with ``value`` at a dotted ``key``; a name on the way becomes ``{"name": name}``.

    Options of a method that is not named are those of the project's default.  Setting ``seeds`` drops
    ``seed`` and the other way round: an override replaces what the file says.
    """
    head, _, rest = key.partition(".")
    result = dict(data)
    if not rest:
        result[head] = value
        if head in {"seed", "seeds"}:
            result.pop("seeds" if head == "seed" else "seed", None)
        return result
    inner = result.get(head)
    if head == "method" and inner is None:
        inner = DEFAULT_METHOD
    if isinstance(inner, str):
        inner = {"name": inner}
    elif inner is not None and not isinstance(inner, dict):
        raise ConfigError(f"{where} {key!r}: {head!r} is {inner!r}, which has no keys.")
    result[head] = set_dotted(inner or {}, rest, value, where)
    return result
