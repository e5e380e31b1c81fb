"""Paths that lead to no file: loops, the root, links to nothing, pipes, addresses of remote storage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.cli.words import Shell, checkpoint_files

READERS = (
    ("log", "PATH"),
    ("show", "PATH"),
    ("diff", "PATH", 10, 20),
    ("verify", "PATH", "--deep"),
    ("export", "PATH", "-o", "out.pt"),
    ("compact", "PATH"),
)
TAKERS = (("import", "PATH", "store"), ("compress", "PATH", "-o", "out.dq"))


def every_word(words: tuple[object, ...], path: str) -> list[object]:
    """The words of a command on a path."""
    return [path if word == "PATH" else word for word in words]


@contextmanager
def another_user(folder: Path) -> Iterator[None]:
    """Inside the context nobody's rights hold, and the folder can be reached."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user to be refused")
    for above in (folder, *folder.parents[:3]):
        above.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_loop_of_links_and_the_root_are_answered(
    shell: Shell, words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were called a bug to be reported."""
    monkeypatch.chdir(tmp_path)
    Path("one").symlink_to("other")
    Path("other").symlink_to("one")
    told = shell(*every_word(words, "one"))
    assert told.status == 1
    assert "one is a link or a socket; give the path of a checkpoint file." in told.error()
    assert "a bug" not in shell(*every_word(words, "/")).err  # what it holds is the machine's


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_link_to_nothing_is_told_with_where_it_leads(
    shell: Shell, words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was two sentences in one, with "check the disk"."""
    monkeypatch.chdir(tmp_path)
    Path("latest").symlink_to("renamed")
    told = shell(*every_word(words, "latest"))
    assert told.status == 1
    assert (
        f"'latest' is a symbolic link to {str(tmp_path / 'renamed')!r}, which does not exist" in told.error()
    )


def test_what_may_not_be_read_behind_a_link_is_one_sentence(
    shell: Shell, looked_at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.dq").write_bytes(checkpoint_files(looked_at)[0].read_bytes())
    Path("secret.dq").chmod(0o600)
    Path("latest").symlink_to("secret.dq")
    with another_user(tmp_path):
        told = shell("log", "latest")
    assert "Cannot look at 'latest': Permission denied; grant this user read" in told.error()
    assert ".;" not in told.error()


def test_a_folder_that_may_not_be_looked_into_hides_no_checkpoints_beside_it(
    shell: Shell, looked_at: Path, tmp_path: Path
) -> None:
    """As the lost+found of a disk: all of the output folder was refused."""
    shutil.copytree(looked_at, tmp_path / "output" / "store")
    (tmp_path / "output" / "lost+found").mkdir(mode=0o700)
    with another_user(tmp_path):
        told = shell("log", tmp_path / "output")
    assert f"give {str(tmp_path / 'output' / 'store')!r}" in told.error()


@pytest.mark.parametrize("words", [*TAKERS, ("run", "PATH")], ids=lambda words: words[0])
def test_what_is_no_regular_file_is_not_called_nothing(
    shell: Shell, words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `compress <(zcat model.pt.gz)`: the path is right."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    told = shell(*every_word(words, "pipe"))
    assert told.status == 1
    assert "no regular file" in told.error()
    assert "copy" in told.error()


@pytest.mark.parametrize("words", TAKERS, ids=lambda words: words[0])
def test_a_link_to_nothing_is_called_that_where_a_native_file_is_expected(
    shell: Shell, words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latest").symlink_to("renamed")
    assert (
        f"a symbolic link to nothing ({tmp_path / 'renamed'})" in shell(*every_word(words, "latest")).error()
    )


@pytest.mark.parametrize(
    "words",
    [
        *READERS,
        *TAKERS,
        ("run", "PATH"),
        ("run", "quickstart", "output=PATH"),
        ("import", "native.pt", "PATH"),
        ("compress", "native.pt", "-o", "PATH"),
        ("decompress", "PATH", "-o", "out.pt"),
        ("decompress", "model.dq", "-o", "PATH"),
        ("export", "model.dq", "-o", "PATH"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_addresses_are_refused_wherever_a_path_is_given(
    shell: Shell,
    words: tuple[object, ...],
    looked_at: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`import native.pt s3://bucket/run` made a folder "s3:" here, and said that all was well."""
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.randn(64, 64)}, "native.pt")
    Path("model.dq").write_bytes(checkpoint_files(looked_at)[0].read_bytes())
    told = shell(*(str(word).replace("PATH", "s3://bucket/x.pt") for word in words))
    assert told.status == 1
    assert "must lie on a local or mounted disk, got the address 's3://bucket/x.pt'" in told.error()
    assert {path.name for path in tmp_path.iterdir()} == {"native.pt", "model.dq"}
