"""log, show, diff and verify on real stores, whole and damaged."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from dynaquant_core.cli.diff import Movement, movement
from dynaquant_core.cli.output import plain, share, size, times
from dynaquant_core.files import save_file
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.training.checkpointer import Checkpointer
from tests.cli.words import Shell, checkpoint_files
from tests.format.samples import resealed


def flip(path: Path) -> None:
    """Damages one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def test_log_has_one_line_a_checkpoint_and_their_sum(shell: Shell, looked_at: Path) -> None:
    outcome = shell("log", looked_at)
    assert outcome.status == 0
    assert [step for step in (10, 20, 30) if f" {step} " in outcome.out] == [10, 20, 30]
    assert "3 checkpoints" in outcome.out


def test_log_json_agrees_with_the_files(shell: Shell, looked_at: Path) -> None:
    told = shell("log", looked_at, "--json").json()["checkpoints"]
    assert [entry["step"] for entry in told] == [10, 20, 30]
    assert [entry["stored_bytes"] for entry in told] == [
        path.stat().st_size for path in checkpoint_files(looked_at)
    ]
    for entry in told:
        assert sum(part["stored_bytes"] for part in entry["parts"].values()) == entry["stored_bytes"]
        assert entry["ratio"] == pytest.approx(entry["raw_bytes"] / entry["stored_bytes"])


def test_log_has_a_column_of_stale_only_where_one_is_known(
    shell: Shell, looked_at: Path, tmp_path: Path
) -> None:
    assert "stale" not in shell("log", looked_at).out
    assert {entry["stale"] for entry in shell("log", looked_at, "--json").json()["checkpoints"]} == {None}
    model = torch.nn.Linear(32, 32)
    quality = [1.0]
    with Checkpointer(tmp_path, model, evaluate=lambda: quality) as checkpointer:
        checkpointer.save()  # nothing has moved: there is no share of it
        with torch.no_grad():
            model.weight += 1.0
        checkpointer.step()
        checkpointer.save()
    known = [entry["stale"] for entry in shell("log", tmp_path, "--json").json()["checkpoints"]]
    assert known[0] is None
    assert abs(known[1]) < 1.0
    outcome = shell("log", tmp_path)
    assert "stale" in outcome.out
    assert f"{100 * known[1]:.2f}%" in outcome.out
    assert f"{100 * known[1]:.2f}%" in shell("show", tmp_path).out


@pytest.mark.parametrize("lost", ["much", 3, {"stale": "much"}, {"stale": True}, {}, None])
def test_a_record_of_stale_that_is_none_is_left_out(lost: object) -> None:
    base = CheckpointInfo(1, 1, "key", None, "exact", {}, 1, 1, {}, report={"movement_lost": lost})
    assert base.stale is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quality", 5),
        ("quality", {"search": "x", "reference": ["l"]}),
        ("degradation", "x"),
        ("degradation", ["l"]),
        ("degradation", True),
        ("met", "x"),
        ("met", ["l"]),
        ("evaluations", {"a": 1}),
        ("evaluations", -4),
        ("seconds", 5),
        ("seconds", {"held": "x", "draft": 2.5}),
        ("seconds", {"held": None}),
    ],
)
def test_a_record_that_is_of_another_type_is_left_out(
    shell: Shell, store: Path, tmp_path: Path, key: str, value: object
) -> None:
    """What a search recorded is a matter of information; the tensors are there as ever."""
    (first, *_) = checkpoint_files(store)

    def change(document: dict[str, Any]) -> None:
        document["meta"]["report"] = {"quality": {"reference": 1.0, "search": 1.0}, key: value}

    first.write_bytes(resealed(first.read_bytes(), change))
    for words in (("log", first), ("show", first), ("show", first, "--json"), ("show", first, "--tensors")):
        assert shell(*words).status == 0
    told = shell("show", first, "--json").json()
    nothing = {"evaluations": 0, "seconds": {"draft": 2.5} if "2.5" in str(value) else {}}
    assert key == "quality" or told[key] == nothing.get(key)
    out = tmp_path / "best.pt"
    best = shell("export", first, "--best", "-o", out)
    assert "without" in best.error() if key == "quality" else best.status == 0
    assert shell("export", first, "-o", out).status == 0


def test_log_says_what_was_passed_over(shell: Shell, store: Path) -> None:
    flip(checkpoint_files(store)[-1])
    checkpoint_files(store)[-1].write_bytes(b"")
    outcome = shell("log", store)
    assert outcome.status == 0
    assert checkpoint_files(store)[-1].name in outcome.err


def test_show_takes_the_newest_or_the_named_step(shell: Shell, looked_at: Path) -> None:
    assert shell("show", looked_at, "--json").json()["step"] == 30
    first = shell("show", looked_at, "--step", 10, "--json").json()
    assert first["kind"] == "key"
    assert first["exhaustive"] == ("exhaustive search" in shell("show", looked_at, "--step", 10).out)
    outcome = shell("show", looked_at, "--step", 11)
    assert outcome.status == 1
    assert "11" in outcome.error()


def test_show_tensors_accounts_for_every_byte_of_tensors(shell: Shell, looked_at: Path) -> None:
    told = shell("show", looked_at, "--tensors", "--json").json()
    assert sum(entry["raw_bytes"] for entry in told["tensors"]) == told["raw_bytes"]
    for role, part in (("weight", "weights"), ("moment", "moments")):
        listed = [entry for entry in told["tensors"] if entry["role"] == role]
        listed += [entry for entry in told["tensors"] if (entry["name"], entry["part"]) == ("(shared)", part)]
        assert sum(entry["stored_bytes"] for entry in listed) == told["parts"][role]["stored_bytes"]
    names = {entry["name"]: entry for entry in told["tensors"]}
    assert names["model.0.weight"]["role"] == "weight"
    assert names["model.0.weight"]["shape"] == [64, 48]
    assert all(entry["codecs"] for entry in told["tensors"] if entry["stored_bytes"])
    assert "model.0.weight" in shell("show", looked_at, "--tensors").out


def test_names_are_printed_letter_by_letter(shell: Shell, tmp_path: Path) -> None:
    """One was shown as an emoji, one with a letter more, and one in two rows."""
    names = ("user:id:emb", "back\\", "[red]a", "new\nline", "esc\x1b[31mred")
    shown = ("user:id:emb", "back\\ ", "[red]a", "new\\nline", "esc\\x1b[31mred")
    state = {name: torch.arange(12.0) for name in names}
    CheckpointStore(tmp_path / "store").save(1, state)
    for words in (("show", "--tensors"), ("diff", 1, 1)):
        rows = shell(words[0], tmp_path / "store", *words[1:]).out.splitlines()
        assert [name for name in shown if not any(row[1:].strip("│ ").startswith(name) for row in rows)] == []


def test_log_of_a_store_without_a_whole_file_is_an_error(shell: Shell, store: Path) -> None:
    for path in checkpoint_files(store):
        path.write_bytes(path.read_bytes()[:-1])
    outcome = shell("log", store)
    assert outcome.status == 1
    assert "none of its 3 files" in outcome.error()
    assert shell("verify", store).status == 1


@pytest.mark.parametrize("index", [0, 2])
def test_a_single_file_of_a_store_can_be_shown(shell: Shell, looked_at: Path, index: int) -> None:
    path = checkpoint_files(looked_at)[index]
    assert shell("show", path, "--json").json()["step"] == (10, 20, 30)[index]
    assert len(shell("log", path, "--json").json()["checkpoints"]) == 1
    assert shell("verify", path).status == 0


@pytest.mark.parametrize("kind", ["key", "delta", "alone"])
def test_a_link_to_a_file_is_read_as_the_file(
    shell: Shell, looked_at: Path, tmp_path: Path, kind: str
) -> None:
    """`latest.dq` beside a store is usual; what a delta builds on lies where the link leads."""
    target = checkpoint_files(looked_at)[kind == "delta"]
    if kind == "alone":
        target = tmp_path / "model.dq"
        save_file({"w": torch.randn(64, 64)}, target)
    (tmp_path / "first").symlink_to(target)
    (tmp_path / "latest.dq").symlink_to("first")
    step = shell("show", target, "--json").json()["step"]
    for words in (
        ("log",),
        ("show",),
        ("show", "--tensors"),
        ("verify",),
        ("verify", "--deep"),
        ("diff", step, step),
        ("export", "-o", tmp_path / "out.pt"),
    ):
        outcome = shell(words[0], tmp_path / "latest.dq", *words[1:])
        assert outcome.status == 0, (words, outcome.err)
    (tmp_path / "nowhere.dq").symlink_to("gone")
    assert "nowhere.dq" in shell("show", tmp_path / "nowhere.dq").error()


def test_diff_tells_what_moved(shell: Shell, looked_at: Path) -> None:
    told = shell("diff", looked_at, 10, 30, "--json").json()
    assert (told["from"], told["to"]) == (10, 30)
    by_name = {entry["name"]: entry for entry in told["tensors"]}
    before, after = (CheckpointStore(looked_at).load(step)["model"]["0.weight"] for step in (10, 30))
    expected = ((after.double() - before.double()).norm() / before.double().norm()).item()
    assert by_name["model.0.weight"]["relative"] == pytest.approx(expected)
    assert "model.0.weight" in shell("diff", looked_at, 10, 30).out


def test_diff_of_a_step_with_itself_moves_nothing(shell: Shell, looked_at: Path) -> None:
    told = shell("diff", looked_at, 20, 20, "--json").json()["tensors"]
    assert {entry["change"] for entry in told} == {"same"}


def test_diff_top_sorts_by_movement(shell: Shell, looked_at: Path) -> None:
    told = shell("diff", looked_at, 10, 30, "--top", 3, "--json").json()["tensors"]
    moved = [entry["relative"] or 0.0 for entry in told]
    assert len(moved) == 3
    assert moved == sorted(moved, reverse=True)


def test_diff_top_begins_with_what_has_no_finite_ratio(shell: Shell, tmp_path: Path) -> None:
    before = {"a": torch.ones(4), "nan": torch.tensor([float("nan"), 1.0]), "b": torch.ones(4)}
    after = {"a": torch.ones(4) * 1.01, "nan": torch.tensor([float("nan"), 2.0]), "b": torch.ones(4) * 5}
    still = {"same": torch.zeros(3), "still": torch.tensor([float("nan")])}
    with CheckpointStore(tmp_path) as store:
        store.save(1, before | still | {"zero": torch.zeros(2), "gone": torch.ones(2), "bent": torch.ones(2)})
        store.save(2, after | still | {"zero": torch.ones(2), "new": torch.ones(2), "bent": torch.ones(3)})
    outcome = shell("diff", tmp_path, 1, 2, "--top", 7, "--json")
    names = [entry["name"] for entry in outcome.json()["tensors"]]
    assert (set(names[:5]), names[5:]) == ({"nan", "zero", "gone", "new", "bent"}, ["b", "a"])
    assert "NaN" not in outcome.out


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (None, torch.ones(2), "added"),
        (torch.ones(2), None, "removed"),
        (torch.ones(2), torch.ones(3), "reshaped"),
        (torch.ones(2), torch.ones(2).half(), "reshaped"),
        (torch.ones(2), torch.ones(2), "same"),
        (torch.zeros(0), torch.zeros(0), "same"),
        (torch.tensor(3), torch.tensor(4), "moved"),
        (torch.tensor([True]), torch.tensor([False]), "moved"),
        (torch.zeros(2), torch.ones(2), "moved"),
    ],
)
def test_movement_names_the_change(
    before: torch.Tensor | None, after: torch.Tensor | None, change: str
) -> None:
    assert movement("x", before, after).change == change


@pytest.mark.parametrize("stays", [float("inf"), -float("inf"), float("nan")])
def test_what_is_no_finite_number_and_stays_has_not_moved(shell: Shell, tmp_path: Path, stays: float) -> None:
    """A mask of infinities, or one weight that went to NaN long ago, hid how far the others moved."""
    with CheckpointStore(tmp_path, method="exact") as store:
        for step, value in enumerate((1.0, 1.25)):
            store.save(step, {"w": torch.tensor([stays, value, -value])})
    (found,) = shell("diff", tmp_path, 0, 1, "--json").json()["tensors"]
    assert (found["change"], found["largest"]) == ("moved", 0.25)
    assert found["relative"] is None, "a share of an infinite length means nothing"
    assert "nan" not in shell("diff", tmp_path, 0, 1).out


def test_what_became_infinite_has_moved_infinitely() -> None:
    before, after = torch.tensor([1.0, float("inf")]), torch.tensor([float("inf"), -float("inf")])
    assert movement("w", before, after).largest == float("inf")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_whole_numbers_that_float64_cannot_tell_apart_have_moved(dtype: torch.dtype) -> None:
    before, after = torch.tensor([2**60, 5], dtype=dtype), torch.tensor([2**60 + 3, 5], dtype=dtype)
    found = movement("ids", before, after)
    assert (found.change, found.largest, found.unchanged) == ("moved", 3.0, 0.5)
    assert found.relative == pytest.approx(3 / 2**60)


def test_verify_is_0_on_a_good_store_and_1_on_a_damaged_one(shell: Shell, store: Path) -> None:
    assert shell("verify", store, "--deep").status == 0
    flip(checkpoint_files(store)[1])
    outcome = shell("verify", store)
    assert outcome.status == 1
    assert "step-000000020" in outcome.out
    told = shell("verify", store, "--json")
    assert told.status == 1
    assert not told.json()["good"]
    assert told.json()["problems"]


@pytest.mark.parametrize("kind", ["file", "empty", "foreign"])
def test_what_is_not_a_store_is_an_error(shell: Shell, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("hello")
    else:
        path.mkdir()
    if kind == "foreign":
        (path / "notes.txt").write_text("hello")
    for command in ("log", "show", "verify"):
        outcome = shell(command, path)
        assert outcome.status == 1, command
        assert kind in outcome.error()


def test_a_damaged_single_file_is_an_error(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.dq"
    path.write_bytes(checkpoint_files(looked_at)[0].read_bytes()[:-100])
    outcome = shell("show", path)
    assert outcome.status == 1
    assert "cut.dq" in outcome.error()


def test_numbers_for_readers() -> None:
    assert size(10**15) == "1 PB"
    assert share(float("nan")) == "-"
    assert times(10, 4) == "2.5x"
    assert plain({"x": float("inf"), "p": Path("a")}) == {"x": None, "p": "a"}


def test_a_nan_that_stays_has_not_moved() -> None:
    frozen = torch.tensor([float("nan"), 1.0])
    assert movement("w", frozen, frozen.clone()) == Movement("w", "same", 0.0, 0.0, 1.0)
    assert movement("w", frozen, torch.tensor([float("nan"), 2.0])).unchanged == 0.5


def test_an_experiments_folder_is_answered_with_its_store(shell: Shell, tmp_path: Path) -> None:
    output = tmp_path / "runs" / "trial"
    with CheckpointStore(output / "run-0" / "store") as store:
        store.save(1, {"w": torch.ones(4)})
    (output / "results.json").write_text("{}")
    outcome = shell("log", output)
    assert outcome.status == 1
    assert "run-0/store" in outcome.err.replace("\n", "")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_value_of_the_log_is_there_whatever_the_width_of_the_terminal(
    looked_at: Path, columns: int
) -> None:
    """On a real terminal, where a table that does not fit would lose whole columns."""
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", "from dynaquant_core.cli import main; main()", "log", str(looked_at)]
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(command, stdout=terminal, stderr=terminal, stdin=terminal, env=environment)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while True:
            shown += os.read(main, 4096)
    assert process.wait() == 0
    os.close(main)
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).split())
    opened = CheckpointStore(looked_at)
    for info in map(opened.info, opened.steps()):
        assert str(info.step) in text
        assert size(info.stored_bytes) in text
