"""Two gloo ranks: the all-reduce of compressed gradients is DDP's, with fewer bytes."""

import json
import os

import pytest

from tests.programs import Program
from tests.triton_here import require_interpreter


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of two ranks said."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    processes = [
        Program(
            ["-m", "tests.memory.samo_ranks", store, rank, 2],
            env=os.environ | {"OMP_NUM_THREADS": "1", "DYNAQUANT_THREADS": "1", "TRITON_INTERPRET": "1"},
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_float32_equals_masked_dense_training_under_ddp_bit_for_bit(told):
    assert [(one["gpt"], one["conv"]) for one in told] == [(True, True)] * 2


def test_half_precision_ranks_stay_together_and_hand_in_only_what_is_kept(told):
    for one in told:
        assert one["half"]["together"]
        assert one["half"]["fell"]
        assert one["half"]["share"] == pytest.approx(1, abs=0.05)  # flags and alignment


def test_layers_that_some_ranks_or_none_used(told):
    first, second = (one["unused"] for one in told)
    assert first == second
    assert None not in first[:2]
    assert first[2] is None


def test_passes_without_a_reduction_compress_many_layers_at_a_time(told):
    """Biases, which have no mask and stay with autograd, are between them in float32."""
    require_interpreter()
    for one in told:
        launches, same = one["accumulated"]
        assert same
        assert launches == [9, 9]


def test_what_would_shape_other_buckets_is_one_error_on_all_ranks(told):
    """In the all-reduce it would be an abort, or an average of what does not belong together."""
    first, second = (one["settings"] for one in told)
    assert first == second
    assert len(first) == 9
    for name, message in first.items():
        assert f"different {name};" in message or name == "hold gradients"
    assert "hold gradients" in first["hold gradients"]


def test_a_mistake_on_one_rank_leaves_no_other_waiting(told):
    right, wrong = (one["mistakes"] for one in told)
    assert "sparsity" in wrong["sparsity"]
    assert "'nobody'" in wrong["mask"]
    assert "expected a torch.nn.Module" in wrong["model"]
    assert len(right) == 3
    assert all("rank 1 of the group was given what cannot be wrapped" in one for one in right.values())


def test_different_masks_and_ddp_are_refused(told):
    for one in told:
        assert "different masks" in one["masks"]
        assert "give model.module" in one["ddp"]
