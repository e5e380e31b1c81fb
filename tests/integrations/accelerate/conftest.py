"""These tests train with the real Accelerate; without it they are skipped."""

import pytest

#: What Accelerate and torch say about machines without a GPU.
SAID_BY_OTHERS = (
    "ignore:.*pin_memory.*",
    "ignore:.*GradScaler is enabled, but CUDA is not available.*",
    "ignore:.*lr_scheduler.step.*",
)


def pytest_pycollect_makemodule():
    """Skips this folder where the framework is not installed, before a module of it is imported."""
    pytest.importorskip("accelerate", reason="Accelerate is not installed in this environment")


def pytest_collection_modifyitems(items):
    for item in items:
        if "integrations/accelerate" in item.path.as_posix():
            for rule in SAID_BY_OTHERS:
                item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps its settings in a singleton, which leaks from test to test, between folders too."""
    forget()
    yield
    forget()


def forget():
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
