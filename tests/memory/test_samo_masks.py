"""What is pruned, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DataParallel

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo import kernels
from dynaquant_core.memory.samo.masks import require_layer
from dynaquant_core.memory.samo.places import bits_of, compress, expand, flat_view, index_of, mask_of
from tests.memory.samo_nets import gpt
from tests.reference import samo_twins

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def small():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    return model, torch.optim.Adam(model.parameters())


@given(
    SIZES,
    st.integers(0, 2**32),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_compress_and_expand_are_each_others_inverse(shape, seed, share, dtype):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(shape), generator=generator).tolist()
    weight = torch.randn(shape, generator=generator).to(dtype).permute(order)
    mask = torch.rand(weight.shape, generator=generator) < share
    index = index_of(mask, weight)
    assert index.dtype == torch.int32
    assert torch.equal(mask_of(index, weight), mask)
    assert np.unpackbits(bits_of(index, weight.numel()).numpy()).sum() == mask.sum()
    values = compress(flat_view(weight), index, torch.empty(index.numel(), dtype=dtype))
    expected = torch.where(mask, weight, torch.zeros((), dtype=dtype))
    expand(values, index, flat_view(weight))
    assert torch.equal(weight, expected)


@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([np.int16, np.int32]))
def test_the_kernel_equals_its_twin(seed, size, dtype):
    random = np.random.default_rng(seed)
    index = np.flatnonzero(random.random(size) < random.random()).astype(np.int32)
    values = random.integers(-100, 100, index.size).astype(dtype)
    mine, theirs = np.zeros(size, dtype), np.zeros(size, dtype)
    kernels.scatter(mine, index, values)
    samo_twins.scatter(theirs, index, values)
    assert mine.tobytes() == theirs.tobytes()


def test_many_values_are_written_by_several_threads(monkeypatch):
    monkeypatch.setenv("DYNAQUANT_THREADS", "4")
    flat = torch.ones(1_500_000, dtype=torch.float16)
    index = torch.arange(0, 1_500_000, 2, dtype=torch.int32)
    values = torch.randn(index.numel()).half()
    expand(values, index, flat)
    assert torch.equal(flat[::2], values)
    assert not flat[1::2].any()


@given(
    st.lists(SIZES, min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.floats(0, 0.999),
    st.sampled_from(["layer", "global"]),
)
def test_magnitude_masks_keep_the_largest_and_no_layer_loses_all(shapes, seed, sparsity, scope):
    generator = torch.Generator().manual_seed(seed)
    weights = {str(at): torch.randn(shape, generator=generator) for at, shape in enumerate(shapes)}
    masks = samo.magnitude_masks(weights, sparsity, scope=scope)
    for name, weight in weights.items():
        kept, pruned = weight[masks[name]].abs(), weight[~masks[name]].abs()
        assert kept.numel() >= 1
        assert not pruned.numel() or pruned.max() <= kept.min()
        if scope == "layer":
            assert pruned.numel() == min(round(sparsity * weight.numel()), weight.numel() - 1)
    if scope == "global":
        total = sum(weight.numel() for weight in weights.values())
        pruned = sum(int((~mask).sum()) for mask in masks.values())
        assert round(sparsity * total) - len(weights) <= pruned <= round(sparsity * total)


def test_vectors_embeddings_and_patterns_stay_dense():
    def pruned(**options):
        model = gpt()
        return set(samo.wrap(model, torch.optim.Adam(model.parameters()), **options).masks())

    usual = pruned()
    assert all(name.startswith("blocks.") and name.endswith("weight") for name in usual)
    assert usual < pruned(embeddings=True) == usual | {"wte.weight", "wpe.weight"}
    assert pruned(dense="blocks.0") == {name for name in usual if name.startswith("blocks.1")}
    assert pruned(dense=["head"], embeddings=True) == usual | {"wpe.weight"}  # tied: any of its names counts


def test_a_mask_may_use_any_name_of_a_tied_weight_and_leaves_other_layers_dense():
    model = gpt()
    mask = torch.rand(model.wte.weight.shape) < 0.5
    handle = samo.wrap(
        model, torch.optim.Adam(model.parameters()), {"head.weight": mask}, dtype=torch.float32
    )
    assert list(handle.masks()) == ["wte.weight"]
    assert torch.equal(model.head.weight != 0, mask)


def wrap_with(**options):
    def act():
        model, optimizer = small()
        samo.wrap(model, optimizer, **options)

    return act


def wrap_mask(name, mask, **options):
    return wrap_with(mask={name: mask}, **options)


def wrap_twice():
    model, optimizer = small()
    samo.wrap(model, optimizer)
    samo.wrap(model, optimizer)


def wrap_others():
    samo.wrap(small()[0], small()[1])


def wrap_integers():
    model = nn.Linear(4, 4)
    model.table = nn.Parameter(torch.zeros(4, 4, dtype=torch.int32), requires_grad=False)
    samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


def wrap_doubles():
    model = nn.Linear(4, 4).double()
    samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


def wrap_parallel():
    model, optimizer = small()
    samo.wrap(DataParallel(model), optimizer)


def wrap_gaps():
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.zeros(4, 8)[:, :4])
    samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


def wrap_late():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adafactor(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    samo.wrap(model, optimizer)


def wrap_frozen():
    model, optimizer = small()
    model[0].weight.requires_grad_(requires_grad=False)
    samo.wrap(model, optimizer, {"0.weight": torch.ones(5, 6, dtype=torch.bool)})


def wrap_vectors():
    model = nn.LayerNorm(8)
    samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


def wrap_sparse():
    model = nn.Embedding(4, 4, sparse=True)
    samo.wrap(model, torch.optim.SparseAdam(model.parameters()), embeddings=True)


TRUE = torch.ones(5, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (wrap_mask("0.weight", TRUE.t()), "has shape (6, 5), its parameter (5, 6)"),
        (wrap_mask("0.weight", TRUE.float()), "is torch.float32, expected torch.bool"),
        (wrap_mask("0.weight", ~TRUE), "keeps nothing"),
        (wrap_mask("0.weight", TRUE.tolist()), "is list, expected a bool tensor"),
        (wrap_mask("0.wieght", TRUE), "did you mean '0.weight'?"),
        (wrap_mask("0.weight", TRUE, sparsity=0.5), "not both"),
        (wrap_with(mask=TRUE), "must map names to bool tensors, got Tensor"),
        (wrap_with(sparsity=1.0), "sparsity must be a number in [0.0, 1.0), got 1.0"),
        (wrap_with(sparsity=-0.1), "got -0.1"),
        (wrap_with(sparsity=float("nan")), "got nan"),
        (wrap_with(pruner="random"), "pruner must be one of 'magnitude', 'early_bird'"),
        (wrap_with(scope="model"), "scope must be one of"),
        (wrap_with(dtype=torch.float64), "dtype must be one of"),
        (wrap_with(loss_scale=0.0), "loss_scale must be a number"),
        (wrap_with(group="all"), "group must be a process group, 'world' or None"),
        (wrap_with(dense="*"), "no parameter can be pruned"),
        (wrap_with(dense=["*.bias", "1.wieght"]), "'1.wieght' of dense covers no parameter; did you mean"),
        (wrap_with(dense=[2]), "dense must be patterns of names, got 2"),
        (wrap_with(dense=2), "dense must be patterns of names, got 2"),
        (lambda: samo.memory_report(small()[0]), "expected the handle that samo.wrap gave, got Sequential"),
        (lambda: samo.plan(9, devices=1, memory=1e9, batch=1, moments="2"), "moments must be a whole number"),
        (wrap_twice, "wrapped already"),
        (wrap_others, "4 of the optimizer's 4 parameters are not the model's"),
        (wrap_integers, "'table' is int32, expected float32, float16 or bfloat16"),
        (wrap_doubles, "'weight' is float64"),
        (wrap_parallel, "give model.module"),
        (wrap_gaps, "lies in memory with gaps"),
        (wrap_late, "wrap before the first step"),
        (wrap_frozen, "is frozen or not in the optimizer"),
        (wrap_vectors, "no parameter can be pruned"),
        (wrap_sparse, "SparseAdam needs matrices or sparse gradients"),
        (lambda: samo.wrap(small()[1], small()[1]), "model is Adam, expected a torch.nn.Module"),
        (lambda: samo.wrap(small()[0], small()[0]), "optimizer is Sequential"),
        (lambda: samo.EarlyBird(window=0), "must be positive"),
        (
            lambda: require_layer("w", torch.empty(2**16, 2**15, device="meta")),
            "int32 index numbers 2147483647",
        ),
        (lambda: require_layer("w", torch.empty(4, 4, device="meta")), "has no memory yet"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(act, message):
    with pytest.raises(ConfigError) as caught:
        act()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_changes_nothing():
    model, optimizer = small()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with pytest.raises(ConfigError):
        samo.wrap(model, optimizer, {"0.weight": TRUE, "1.weight": TRUE})
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert [one.shape for one in optimizer.param_groups[0]["params"]] == [
        one.shape for one in model.parameters()
    ]
    samo.wrap(model, optimizer)


def test_an_optimizer_in_accelerates_wrapper_is_refused_and_nothing_is_changed():
    """The wrapper is an optimizer by its class and calls none of an optimizer's hooks."""
    pytest.importorskip("accelerate", reason="accelerate is not installed in this environment")
    from accelerate import Accelerator

    model, optimizer = small()
    wrapper = Accelerator(cpu=True).prepare(optimizer)
    before = model[0].weight.clone()
    with pytest.raises(ConfigError, match=r"AcceleratedOptimizer wraps .*the one inside"):
        samo.wrap(model, wrapper)
    assert model[0].weight.dtype == torch.float32
    assert torch.equal(model[0].weight, before)
    samo.wrap(model, wrapper.optimizer)
    model(torch.ones(1, 6)).sum().backward()
    wrapper.step()
    assert not torch.equal(model[0].weight.float(), before)


def test_a_model_that_was_cast_or_replaced_after_wrap_is_refused_at_the_step():
    model, optimizer = small()
    samo.wrap(model, optimizer, dtype=torch.float32)
    model(torch.ones(1, 6)).sum().backward()
    model.bfloat16()
    with pytest.raises(StateMismatchError, match="move and cast the model before"):
        optimizer.step()
    model, optimizer = small()
    samo.wrap(model, optimizer, dtype=torch.float32)
    with pytest.raises(StateMismatchError, match="assign=True"):
        model.load_state_dict(model.state_dict(), assign=True)
