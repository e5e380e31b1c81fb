"""These tests train with the real Trainer; without transformers they are skipped."""

import pytest
import torch


def pytest_pycollect_makemodule():
    """Skips this folder where the framework is not installed, before a module of it is imported."""
    pytest.importorskip("transformers", reason="transformers is not installed in this environment")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The models are tiny: a second thread only waits, and tests of other processes share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
