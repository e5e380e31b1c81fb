"""What a power loss can take of a folder that a framework has filled, too."""

from __future__ import annotations

import os

from dynaquant_core.plugins import MARKER
from tests.plugins.kit import exact_run, state


def test_what_a_framework_has_put_there_survives_a_power_loss_before_the_marker_does(tmp_path, monkeypatch):
    """Older checkpoints go once this one is committed, with its native files in it."""
    folder = tmp_path / "1.ckpt"
    (folder / "unet").mkdir(parents=True)
    theirs = [folder / name for name in ("scheduler.bin", "unet/config.json")]
    for path in theirs:
        path.write_bytes(b"native")
    (folder / "latest").symlink_to(tmp_path / "nowhere")
    real, durable = os.fsync, {}

    def syncs(descriptor):
        durable.setdefault(os.fstat(descriptor).st_ino, (folder / MARKER).exists())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", syncs)
    run = exact_run()
    run.save(folder, 1, state(1))
    run.close()
    assert [durable.get(path.stat().st_ino) for path in (*theirs, folder / "unet")] == [False] * 3
