"""Exit status and the one line: what every command has in common."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from dynaquant_core.cli.app import app
from dynaquant_core.store import CheckpointStore
from tests.cli.words import Shell


def test_version(shell: Shell) -> None:
    outcome = shell("--version")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("dynaquant ")


def test_no_command_is_bad_usage_and_shows_help(shell: Shell) -> None:
    outcome = shell()
    assert outcome.status == 2
    assert "compress" in outcome.out


@pytest.mark.parametrize("command", [registered.name for registered in app.registered_commands])
def test_every_command_explains_itself(shell: Shell, command: str) -> None:
    outcome = shell(command, "--help")
    assert outcome.status == 0
    assert "Usage: dynaquant" in outcome.out


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("log",),
        ("log", "a", "--nonsense"),
        ("show", "a", "--step", "many"),
        ("diff", "a", "1"),
        ("compress", "in.pt"),
        ("export", "a"),
    ],
)
def test_bad_usage_is_status_2_and_one_line(shell: Shell, words: tuple[str, ...]) -> None:
    outcome = shell(*words)
    assert outcome.status == 2
    assert "--help" in outcome.error()


@pytest.mark.parametrize(
    "words",
    [
        ("log", "missing"),
        ("show", "missing"),
        ("diff", "missing", "1", "2"),
        ("verify", "missing"),
        ("export", "missing", "-o", "out.pt"),
        ("compact", "missing"),
        ("import", "missing.pt", "store"),
        ("compress", "missing.pt", "-o", "out.dq"),
        ("decompress", "missing.dq", "-o", "out.pt"),
        ("run", "missing.yaml"),
        ("bench", "--sizes", "many"),
    ],
)
def test_a_missing_path_is_status_1_one_line_and_leaves_nothing_behind(
    shell: Shell, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = shell(*words)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.error()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_the_traceback_wherever_it_stands(shell: Shell, place: int) -> None:
    words = ["log", "missing"]
    words.insert(place, "--debug")
    outcome = shell(*words)
    assert outcome.status == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("dynaquant: error: ")


def test_a_bug_is_one_line_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise KeyError("nobody\ncaught this")

    monkeypatch.setattr("dynaquant_core.cli.look.open_source", broken)
    outcome = shell("log", "anything")
    assert outcome.status == 1
    assert "KeyError" in outcome.error()


def test_messages_go_to_stderr_only(
    shell: Shell, looked_at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("log", looked_at, "--json").status == 0
    logging.getLogger("dynaquant_core.store").warning("look here")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "warning: look here\n")


def test_as_a_process(looked_at: Path) -> None:
    """The installed entry point: a real exit status, JSON alone on stdout."""
    code = "import sys; from dynaquant_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "log", str(looked_at), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["checkpoints"]) == 3


def test_an_interrupt_is_one_line_and_status_1() -> None:
    code = (
        "import sys; from dynaquant_core.cli import main; from dynaquant_core.cli.app import app\n"
        "@app.command('wait')\ndef wait():\n"
        "    import time; print('waiting', flush=True); time.sleep(60)\n"
        "sys.exit(main(['wait']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err == "dynaquant: error: interrupted; what was committed stays.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("compress", "in.pt", "--dry-run", "--method", "max_noise=["), "--method max_noise: not YAML"),
        (("run", "quickstart", "output=2024-02-30"), "day is out of range"),
        (("run", "quickstart", f"data.source={'x' * 5000}"), "exists neither"),
        (("plan", "--restores", "1", "--interval", "1e-320"), "at least 1e-12"),
        (("plan", "--restores", "1", "--interval", "2%", "--params", "9" * 35 + "G"), "at most 1e+18"),
        (("bench", "--sizes", "9" * 5000), "at most 1e+18"),
        (("bench", "--sizes", "15"), "sizes must be 1,000 parameters or more"),
        (("bench", "--sizes", "999999999G"), "of this machine's memory"),
        (("bench", "--threads", "99999G"), "threads must be 1024 or less"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(
    shell: Shell, words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(4)}, "in.pt")
    outcome = shell(*words)
    assert outcome.status == 1
    assert told in outcome.error()
    assert "This is a bug" not in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.pt"]


def test_a_reader_that_has_seen_enough_is_no_problem(looked_at: Path) -> None:
    code = "import sys; from dynaquant_core.cli import main; sys.exit(main())"
    show = f"{sys.executable} -c '{code}' show {looked_at} --tensors --json"
    command = f"{show} | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_is_gone_before_the_first_line_is_no_problem(looked_at: Path) -> None:
    with subprocess.Popen(process("log", str(looked_at)), stdout=PIPE, stderr=PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        told = running.stderr.read()
    assert (running.returncode, told) == (0, "")


@pytest.mark.parametrize(
    ("where", "told"), [(">/dev/full", "No space left on device"), (">&-", "There is no standard output")]
)
@pytest.mark.parametrize("words", ["log", "verify"])
def test_a_result_that_cannot_be_written_is_one_line(
    looked_at: Path, words: str, where: str, told: str
) -> None:
    command = f"{shlex.join(process(*words.split(), str(looked_at)))} {where}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert "This is a bug" not in done.stderr


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_work_is_done_where_nobody_is_told_of_it(looked_at: Path, where: str) -> None:
    command = f"{shlex.join(process('verify', str(looked_at)))} {where}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "good, 3 checkpoints checked" in done.stdout


def process(*words: str) -> list[str]:
    """The command line as a process of its own."""
    return [sys.executable, "-c", "import sys; from dynaquant_core.cli import main; sys.exit(main())", *words]


def test_names_that_a_terminal_has_no_letters_for_are_spelled_out(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    for step in (1, 2):
        store.save(step, {"é": torch.randn(32, 32)})
    code = "import sys; from dynaquant_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "diff", str(tmp_path / "store"), "1", "2"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    told = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    assert (told.returncode, "error" in told.stderr) == (0, False)
    assert "\\xe9" in told.stdout
