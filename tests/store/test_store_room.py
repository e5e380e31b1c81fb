"""What a file announces is held against the memory that a process can have, before any of it is decoded."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from dynaquant_core import CheckpointStore, load_file
from dynaquant_core.errors import CorruptFileError, LimitError
from dynaquant_core.format import FileWriter, TensorEntry
from dynaquant_core.state import limits, memory_limit

MIB = 1 << 20


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Says what this process's control group allows, in MiB."""

    def say(mib: int) -> None:
        group = tmp_path / "groups" / "job"
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{mib * MIB}\n")
        (group / "memory.swap.max").write_text("0\n")
        (tmp_path / "own").write_text("0::/job\n")
        monkeypatch.setattr(limits, "GROUPS", tmp_path / "groups")
        monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "own")

    return say


def announcing(path: Path, count: int, numel: int) -> Path:
    """A file of some hundred bytes with so many tensors of ones, as anybody could write it."""
    names = [f"w{number}" for number in range(count)]
    with path.open("wb") as file:
        writer = FileWriter(file)
        writer.add("exact", "", "layout", 0, bytes([1] * count))
        for name in names:
            writer.add("exact", name, "values", 9, bytes([1, 0, 0, 0]))
        parts = {"exact": {"method": "exact", "options": {}, "config": {}}}
        meta = {"step": 1, "sequence": 1, "kind": "key", "base": None, "parts": parts}
        entries = [TensorEntry(name, (numel,), "float32", "exact", "exact") for name in names]
        writer.finish(meta, {name: ["t"] for name in names}, entries)
    return path


def test_tensors_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """Each of them alone would fit, so each was given its memory, until there was none."""
    path = announcing(tmp_path / "w.dq", 100, memory_limit() // 40)
    assert path.stat().st_size < 2000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LimitError, match=r"w\.dq.*100 tensors take .* bytes of memory.*names="):
        load_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_what_fits_a_container_is_loaded_in_a_way_that_fits(tmp_path: Path, allowed) -> None:
    state = {name: torch.full((4, MIB), float(number)) for number, name in enumerate("abcdefgh")}  # 128 MiB
    with CheckpointStore(tmp_path / "run", method="exact") as store:
        store.save(1, state)
    store = CheckpointStore(tmp_path / "run", method="exact")
    allowed(200)
    with pytest.raises(LimitError, match="8 tensors"):
        store.load(1)
    assert torch.equal(store.load(1, names="c")["c"], state["c"])
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    store.load_into(into, 1)
    assert all(torch.equal(into[name], tensor) for name, tensor in state.items())
    allowed(100)
    with pytest.raises(LimitError, match="8 tensors"):
        store.load_into(into, 1)
    allowed(300)
    assert torch.equal(store.load(1)["h"], state["h"])


def test_codes_that_fit_are_loaded_where_their_tensors_would_not_fit_twice(tmp_path: Path, allowed) -> None:
    draw = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(2048, 4096, generator=draw) for name in "abcd"}  # 128 MiB
    with CheckpointStore(tmp_path / "run") as store:
        store.save(1, weights)
    allowed(180)  # codes of 32 MiB, and the tensors
    assert CheckpointStore(tmp_path / "run").load()["d"].shape == (2048, 4096)
    allowed(140)
    with pytest.raises(CorruptFileError, match="4 tensors"):
        CheckpointStore(tmp_path / "run").load(1)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": str(70 * MIB)}, 70),
        ("0::/\n", {"memory.max": str(80 * MIB)}, 80),
        ("0::/../host/path\n", {"memory.max": str(80 * MIB)}, 80),
        ("0::/a\n", {"unified/a/memory.max": str(90 * MIB)}, 90),
        ("4:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": str(60 * MIB)}, 60),
        ("4:memory:/host/path\n", {"memory/memory.limit_in_bytes": str(60 * MIB)}, 60),
        (
            "4:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": str(2**63 - 4096),
                "memory/a/memory.memsw.limit_in_bytes": str(50 * MIB),
            },
            50,
        ),
    ],
)
def test_control_groups_of_both_versions_are_minded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    (tmp_path / "machine").write_text("MemTotal: 1 kB\nSwapTotal: 1024 kB\n")
    for name, path in (("GROUPS", "groups"), ("OWN_GROUPS", "own"), ("MACHINE", "machine")):
        monkeypatch.setattr(limits, name, tmp_path / path)
    swap = 0 if "memsw" in str(files) else 1  # swap of the machine, which no group forbids
    assert memory_limit() == (expected + swap) * MIB


def test_a_limit_of_the_processs_own_counts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    try:
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 300 * MIB, hard))
        left = memory_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert 200 * MIB < left <= 300 * MIB


def test_where_nothing_is_said_the_machines_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GROUPS", "OWN_GROUPS", "MACHINE", "OWN_SIZES"):
        monkeypatch.setattr(limits, name, tmp_path / "nothing")
    assert memory_limit() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
