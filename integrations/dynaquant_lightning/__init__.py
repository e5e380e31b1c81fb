"""DynaQuant checkpoints in Lightning: ``Trainer(callbacks=[DynaQuantCallback()])``, and Fabric's plugin.

Importing this package lets Lightning's own loaders read our folders; nothing else of Lightning changes but
for Trainers that hold the callback.
"""

from __future__ import annotations

from dynaquant_lightning.versions import require_lightning

require_lightning()

from dynaquant_lightning.asking import install_asking  # noqa: E402
from dynaquant_lightning.callback import DynaQuantCallback  # noqa: E402
from dynaquant_lightning.io import DynaQuantCheckpointIO  # noqa: E402
from dynaquant_lightning.loading import install_loader  # noqa: E402
from dynaquant_lightning.naming import install_names  # noqa: E402
from dynaquant_lightning.native import export, importer  # noqa: E402
from dynaquant_lightning.paths import is_ours  # noqa: E402
from dynaquant_lightning.reading import read_checkpoint  # noqa: E402
from dynaquant_lightning.resuming import install_resuming  # noqa: E402
from dynaquant_lightning.runs import settled  # noqa: E402

__all__ = ["DynaQuantCallback", "DynaQuantCheckpointIO", "export", "importer"]

install_loader(lambda path: is_ours(settled(path)), read_checkpoint)
install_names()
install_asking()
install_resuming()
