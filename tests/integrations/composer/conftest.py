"""These tests train with the real Composer; without it they are skipped."""

import gc
import warnings

import pytest

#: What Composer, torchmetrics and torch say about short runs on a CPU.
SAID_BY_OTHERS = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:.*pin_memory.*",
    "ignore:.*No optimizer was specified.*",
    "ignore:.*is not in the state_dict.*",
    "ignore:.*lr_scheduler.step.*",
    "ignore:.*FSDP.state_dict_type.*",
    "ignore:.*world size.*",
    "ignore:No batches were trained",
    "ignore:Implicitly cleaning up:ResourceWarning",  # a folder of a load that failed
    "ignore:.*was called before the ``update`` method",
)


def pytest_pycollect_makemodule():
    """Skips this folder where the framework is not installed, before a module of it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its own dependencies say when they are imported
        pytest.importorskip("composer", reason="Composer is not installed in this environment")


def pytest_collection_modifyitems(items):
    for item in items:
        if "integrations/composer" in item.path.as_posix():
            for rule in SAID_BY_OTHERS:
                item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.fixture(autouse=True)
def nothing_left_open():
    """Trainers are closed, and the temporary folders that Composer leaves to the collector are collected."""
    from tests.integrations.composer.kit import RUNS

    yield
    while RUNS:
        RUNS.pop().close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
