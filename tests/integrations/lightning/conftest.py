"""These tests train with the real Lightning; without it they are skipped."""

import pytest
import torch

#: What Lightning itself says about short runs, few workers and torch's newest version.
SAID_BY_LIGHTNING = (
    "ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:.*was called without a model.*",
    "ignore:.*no last checkpoint available.*",
    "ignore:The dirpath has changed.*",
    "ignore:.*LeafSpec.*",
    "ignore:.*lr_scheduler.step.*",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:.*logging interval.*",
    "ignore:.*litlogger.*",
    "ignore:.*consider setting .*",
    "ignore:.*tensorboardX.*",
)


def pytest_pycollect_makemodule():
    """Skips this folder where the framework is not installed, before a module of it is imported."""
    pytest.importorskip("lightning", reason="Lightning is not installed in this environment")


def pytest_collection_modifyitems(items):
    for item in items:
        if "integrations/lightning" in item.path.as_posix():
            for rule in SAID_BY_LIGHTNING:
                item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Layers this small are slower on several threads, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
