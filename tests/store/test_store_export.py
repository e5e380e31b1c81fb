"""Export: what other programs read, and exporters of other packages."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore, exporters
from dynaquant_core.store.export import to_pt, to_safetensors
from tests.store.kit import exact_store, filled, is_same, small_state


def test_numbers_of_numpy_load_with_weights_only(tmp_path: Path) -> None:
    state = {
        "span": np.timedelta64(1500, "ms"),
        "long": np.longdouble("1.5"),
        "complex": np.clongdouble(1 + 2j),
        "swapped": np.array([1, 2], ">i4"),
    }
    store = exact_store(tmp_path / "store")
    store.save(1, state)
    store.export(1, tmp_path / "out.pt")
    read = torch.load(tmp_path / "out.pt", weights_only=True)
    assert {name: read[name] for name in ("span", "long", "complex")} == {
        "span": 1.5,
        "long": 1.5,
        "complex": 1 + 2j,
    }
    assert read["swapped"].tolist() == [1, 2]


@pytest.mark.parametrize("value", [np.timedelta64(5, "M"), np.array([5], "m8[M]"), np.zeros(2, "i4,f4")])
def test_what_torch_has_nothing_for_is_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(dq.UnsupportedStateError, match=r"log\.when"):
        to_pt({"log": {"when": value}}, tmp_path / "out.pt")
    assert not list(tmp_path.iterdir())


def test_text_and_dates_in_arrays_become_lists_of_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = {
        "labels": np.array([["cat", "dog"]]),
        "raw": np.array([b"a", b"bc"]),
        "days": np.array(["2020-01-01", "NaT"], "M8[D]"),
        "day": np.datetime64("2020-01-01"),
        "spans": np.array([1, 2], "m8[m]"),
        "name": np.array("run"),
    }
    store = exact_store(tmp_path / "store")
    store.save(1, state)
    store.export(1, tmp_path / "out.pt")
    read = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(read.pop("spans"), torch.tensor([60.0, 120.0], dtype=torch.float64))
    assert read == {
        "labels": [["cat", "dog"]],
        "raw": [b"a", b"bc"],
        "days": ["2020-01-01", "NaT"],
        "day": "2020-01-01",
        "name": "run",
    }
    assert "lists of text" in caplog.text


def test_pt_loads_with_weights_only(tmp_path: Path) -> None:
    tied = torch.randn(8, 8)
    state = small_state(3) | {
        "tied": [tied, tied],
        "ordered": OrderedDict(a=torch.ones(2, dtype=torch.bfloat16)),
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "path": Path("data") / "x",
        "elapsed": timedelta(seconds=90),
        "scalar": np.float32(0.5),
        "bytes": b"\x00\xff",
        "big": 1 << 80,
        "nothing": None,
    }
    store = exact_store(tmp_path / "store")
    store.save(3, state)
    for name in ("out.pt", "out.pth"):
        store.export(3, tmp_path / name)
        read = torch.load(tmp_path / name, weights_only=True)
        assert list(read) == list(state)
        for key in (
            "model",
            "frozen",
            "optimizer",
            "ordered",
            "size",
            "dtype",
            "bytes",
            "big",
            "nothing",
            "step",
        ):
            assert is_same(read[key], state[key])
        assert torch.equal(read["rng"], torch.from_numpy(state["rng"]))
        assert (read["path"], read["elapsed"], read["scalar"]) == ("data/x", 90.0, 0.5)
        assert read["tied"][0].data_ptr() == read["tied"][1].data_ptr()


def test_safetensors_holds_every_tensor_under_its_name(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    store = exact_store(tmp_path / "store")
    store.export(20, tmp_path / "out.safetensors")
    read = load_file(tmp_path / "out.safetensors")
    state = small_state(20)
    assert is_same({name: read[f"model.{name}"] for name in state["model"]}, state["model"])
    assert torch.equal(read["rng"], torch.from_numpy(state["rng"]))
    assert set(read) == {tensor.name for tensor in tensors_of(tmp_path / "store")}


def tensors_of(path: Path) -> list[object]:
    from dynaquant_core.format import FileReader
    from tests.store.kit import checkpoint_files

    with FileReader(checkpoint_files(path)[0]) as reader:
        return list(reader.index.tensors)


@pytest.mark.parametrize(
    "value", [np.float64(0.3), np.int64(3), np.bool_(True), np.str_("x"), np.longdouble(1)]
)
def test_a_number_of_numpy_beside_tensors_is_left_out(
    tmp_path: Path, value: np.generic, caplog: pytest.LogCaptureFixture
) -> None:
    """`best = np.mean(losses)` is in many a training state."""
    store = exact_store(tmp_path / "store")
    store.save(1, {"w": torch.ones(3), "best": value, "none": [], "nor": (), "log": [{"loss": value}]})
    store.export(1, tmp_path / "out.safetensors")
    assert load_file(tmp_path / "out.safetensors").keys() == {"w"}
    assert "left out: best, log.0.loss" in caplog.text


def test_two_tensors_of_one_dotted_name_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    to_safetensors({"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2)}, tmp_path / "out.safetensors")
    assert sorted(load_file(tmp_path / "out.safetensors")) == ["a.b", "a.b~2"]
    assert caplog.text.rstrip().endswith("the later is called: a.b~2")


def test_a_name_that_the_format_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dq.UnsupportedStateError, match="'__metadata__'"):
        to_safetensors({"w": torch.ones(2), "__metadata__": torch.ones(2)}, tmp_path / "out.safetensors")
    assert not list(tmp_path.iterdir())
    to_safetensors({"model": {"__metadata__": torch.ones(2)}}, tmp_path / "out.safetensors")
    assert load_file(tmp_path / "out.safetensors").keys() == {"model.__metadata__"}


def test_a_dtype_that_the_format_lacks_is_named(tmp_path: Path) -> None:
    store = exact_store(tmp_path / "store")
    store.save(1, {"z": torch.ones(3, dtype=torch.complex128)})
    target = tmp_path / "out.safetensors"
    target.write_bytes(b"older")
    with pytest.raises(dq.UnsupportedStateError, match="safetensors"):
        store.export(1, target)
    assert target.read_bytes() == b"older"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.safetensors", "store"]


@pytest.mark.parametrize("to", ["pt", "safetensors"])
def test_a_target_that_cannot_be_written(tmp_path: Path, to: str) -> None:
    store = exact_store(tmp_path / "store")
    store.save(1, small_state(1))
    with pytest.raises(dq.StorageError, match="export to"):
        store.export(1, tmp_path / "missing" / "out", to=to)
    with pytest.raises(dq.CheckpointNotFoundError):
        store.export(2, tmp_path / "out", to=to)


def test_unknown_exporters(tmp_path: Path) -> None:
    store = exact_store(tmp_path / "store")
    store.save(1, small_state(1))
    with pytest.raises(dq.ConfigError, match="did you mean 'safetensors'"):
        store.export(1, tmp_path / "out", to="safetensor")
    with pytest.raises(dq.ConfigError, match="suffix"):
        store.export(1, tmp_path / "out.onnx")


def count_tensors(state: object, path: Path) -> None:
    """An exporter of another package."""
    path.write_text(str(len(state["model"])))  # type: ignore[index]


def test_an_installed_exporter_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("count", "tests.store.test_store_export:count_tensors", exporters.ENTRY_POINTS)
    broken = EntryPoint("broken", "no_such_package:thing", exporters.ENTRY_POINTS)
    monkeypatch.setattr(exporters, "entry_points", lambda group: [point, broken])
    store = exact_store(tmp_path / "store")
    store.save(1, small_state(1))
    store.export(1, tmp_path / "out.txt", to="count")
    assert (tmp_path / "out.txt").read_text() == str(len(small_state(1)["model"]))
    assert exporters.exporter_names() == ["pt", "safetensors", "broken", "count"]
    with pytest.raises(dq.DependencyError, match="broken"):
        store.export(1, tmp_path / "out.txt", to="broken")


def test_export_reads_a_quantised_checkpoint_as_load_does(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    for step in (1, 2):
        store.save(step, small_state(step))
    store.export(2, tmp_path / "out.safetensors")
    loaded = store.load(2)
    read = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(read[f"model.{name}"], tensor) for name, tensor in loaded["model"].items())


def test_an_exported_file_is_readable_by_whom_the_umask_lets(tmp_path: Path) -> None:
    for write, name in ((to_pt, "a.pt"), (to_safetensors, "a.safetensors")):
        for umask in (0o022, 0o027):
            before = os.umask(umask)
            try:
                write({"a": torch.zeros(3)}, tmp_path / name)
            finally:
                os.umask(before)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "a.safetensors"]
