"""What each tensor is for, and which may be quantised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynaquant_core.state import assign_roles, flatten, is_quantisable, matches


def roles(state):
    return assign_roles(flatten(state).leaves)


def trained(optimizer_class, **options):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = optimizer_class(model.parameters(), lr=0.1, **options)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("optimizer_class", "options", "moments"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer"}),
        (torch.optim.Adam, {"amsgrad": True}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
        (
            torch.optim.RMSprop,
            {"centered": True, "momentum": 0.9},
            {"square_avg", "grad_avg", "momentum_buffer"},
        ),
        (torch.optim.Adagrad, {}, {"sum"}),
        (torch.optim.Adadelta, {}, {"square_avg", "acc_delta"}),
        (torch.optim.Adamax, {}, {"exp_avg", "exp_inf"}),
        (torch.optim.NAdam, {}, {"exp_avg", "exp_avg_sq"}),
        (torch.optim.Rprop, {}, set()),
        (torch.optim.ASGD, {}, set()),
    ],
)
def test_optimizers_of_torch(optimizer_class, options, moments):
    model, optimizer = trained(optimizer_class, **options)
    found = roles({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    under = {name: role for name, role in found.items() if name.startswith("optimizer")}
    assert {name.rsplit(".", 1)[1] for name, role in under.items() if role == "moment"} == moments
    assert "weight" not in under.values()
    assert all(role == "weight" for name, role in found.items() if name.startswith("model"))


def test_several_optimizers_in_a_list_and_parameter_names_as_keys():
    node = {
        "state": {"fc.weight": {"exp_avg": torch.zeros(2, 2), "step": torch.tensor(1.0)}},
        "param_groups": [],
    }
    found = roles({"optimizer_states": [node, node]})
    assert set(found.values()) == {"moment", "exact"}


def test_counters_beside_weights_are_weights_and_generators_are_not():
    bn = nn.BatchNorm1d(4)
    found = roles(
        {"model": bn.state_dict(), "rng": {"torch": torch.get_rng_state()}, "ema": {"w": torch.zeros(3)}}
    )
    assert found["model.num_batches_tracked"] == "weight"
    assert found["rng.torch"] == "exact"
    assert found["ema.w"] == "weight"


def test_long_lists_of_floats_are_exact_not_weights():
    found = roles({"losses": [0.5] * 1000, "blob": b"0" * 5000})
    assert set(found.values()) == {"exact"}


def test_quantisable():
    good = torch.randn(16, 16)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert is_quantisable(good.to(dtype))
    refused = [
        torch.randn(512),
        torch.tensor(1.0),
        torch.randn(15, 15),
        torch.randn(0, 512),
        good.to(torch.float8_e4m3fn),
        good.to(torch.complex64),
        torch.ones(16, 16, dtype=torch.int64),
        torch.ones(16, 16, dtype=torch.bool),
    ]
    for tensor in refused:
        assert not is_quantisable(tensor)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_value_that_is_not_finite_keeps_a_tensor_exact(bad, dtype):
    tensor = torch.zeros(32, 32, dtype=dtype)
    tensor[17, 3] = bad
    assert not is_quantisable(tensor)
    assert not is_quantisable(tensor.t())


def test_float64_outside_float32_stays_exact():
    tensor = torch.zeros(32, 32, dtype=torch.float64)
    tensor[0, 0] = 3.5e38
    assert not is_quantisable(tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_where_float32_itself_is_coarse_a_tensor_stays_exact(dtype):
    tensor = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert is_quantisable(1e-26 * tensor)
    assert not is_quantisable(1e-30 * tensor)
    assert is_quantisable(0 * tensor)


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("lm_head.weight", "lm_head", True),
        ("model.lm_head.weight", "lm_head", True),
        ("model.lm_head.weight", "lm_head.weight", True),
        ("model.lm_head.weight", "model.*", True),
        ("model.lm_head_2.weight", "lm_head", False),
        ("model.h.0.mlp.router.weight", "*.router.*", True),
        ("model.h.1.weight", "h.[02]", False),
        ("model.h.1.weight", "LM_HEAD", False),
        ("anything", "*", True),
    ],
)
def test_patterns(name, pattern, expected):
    assert matches(name, [pattern]) is expected
    assert matches(name, ["no.such", pattern]) is expected
    assert not matches(name, [])


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [(torch.optim.Adam, {}), (torch.optim.Adagrad, {}), (torch.optim.SGD, {"momentum": 0.9})],
)
def test_an_optimizers_tensors_are_known_in_a_state_that_was_flattened_or_cut_out(optimizer_class, options):
    """As torch flattens it, as safetensors files name it, and the inner state alone."""
    model, optimizer = trained(optimizer_class, **options)
    inner = optimizer.state_dict()["state"]
    flat = {
        f"optimizer.state.{number}.{kind}": value
        for number, kinds in inner.items()
        for kind, value in kinds.items()
    }
    for state in (flat | model.state_dict(), {"model": model.state_dict(), "optimizer": inner}):
        found = roles(state)
        kinds = {name.rpartition(".")[2]: role for name, role in found.items() if "optimizer" in name}
        assert set(kinds) - {"step"}
        assert all(role == ("exact" if kind == "step" else "moment") for kind, role in kinds.items())
        assert all(role == "weight" for name, role in found.items() if "optimizer" not in name)


def test_a_weight_is_not_a_moment_for_its_name():
    names = ("sum", "head.sum", "exp_avgs.weight", "momentum_buffers", "adapter.optim.weight")
    assert set(roles({name: torch.zeros(2, 2) for name in names}).values()) == {"weight"}
    found = roles({"model": {"exp_avg.weight": torch.zeros(2, 2), "fc.weight": torch.zeros(2, 2)}})
    assert found == {
        "model.exp_avg.weight": "exact",
        "model.fc.weight": "weight",
    }  # in doubt, nothing is lost


def test_an_optimizers_own_form_holds_no_weight():
    """Kind first, then the parameter; what is not known, or of no weight's shape, stays exact."""
    matrix, vector = torch.zeros(4, 4), torch.zeros(4)
    own = {
        "step": torch.tensor(3.0),
        "exp_avg": [matrix, vector],
        "exp_avg_sq": {"fc.weight": matrix.clone(), "flat": torch.zeros(20)},
        "masters": [[matrix.clone()]],
    }
    found = roles({"model": {"fc.weight": matrix.clone(), "fc.bias": vector.clone()}, "optimizer": own})
    assert {name for name, role in found.items() if role == "moment"} == {
        "optimizer.exp_avg.0",
        "optimizer.exp_avg.1",
        "optimizer.exp_avg_sq.fc.weight",
    }
    assert {name for name, role in found.items() if role == "weight"} == {"model.fc.weight", "model.fc.bias"}


OPTIMIZERS = (
    "optimizer", "optim", "opt", "opts", "opt_state", "opt_states", "optimizer_state_dict", "ema_optimizer",
    "adam", "Adam", "AdamW", "sgd", "SGD_state", "last_optimizer_state", "opt_g", "opt2", "optG", "G_optim",
    "D_opt", "critic_opt", "muon", "amsgrad", "lion_state",
)  # fmt: skip


def own_forms():
    """What optimizers of one's own keep: by kind, by parameter, in lists and in optax's trees."""
    first, second = torch.randn(20, 20), torch.randn(20, 20).square()
    return {
        "letters": {"m": first, "v": second, "t": 3},
        "lists": {"v": [second], "m": [first], "t": torch.tensor(3.0)},
        "second alone": {"v": [second]},
        "by weight": {"fc.weight": {"avg": first, "sq": second}},
        "by kind": {"m": {"fc.weight": first}, "velocity": {"fc.weight": second}},
        "a tree": ({"count": 1, "mu": {"fc": {"weight": first}}, "nu": {"fc": {"weight": second}}}, ()),
        "words": {"state": {"fc.weight": first}, "lr": 0.1},
    }


@pytest.mark.parametrize("key", OPTIMIZERS)
@pytest.mark.parametrize("form", own_forms())
def test_an_optimizer_of_ones_own_holds_no_weight_whatever_it_is_called(key, form):
    state = {"model": {"fc.weight": torch.zeros(20, 20)}, key: own_forms()[form]}
    for kept in (state, {"ranks": [state]}):
        found = roles(kept)
        names = [name for name, role in found.items() if role == "weight"]
        assert len(found) > 1
        assert [name.rpartition("model.")[2] for name in names] == ["fc.weight"]


@pytest.mark.parametrize("key", OPTIMIZERS[2:])
def test_flattened_at_the_root_it_is_known_too(key):
    assert (
        roles({"fc.weight": torch.zeros(4), f"{key}.v.fc.weight": torch.ones(4)})[f"{key}.v.fc.weight"]
        == "exact"
    )


@pytest.mark.parametrize("key", ["trainer", "solver", "state", "inner"])
@pytest.mark.parametrize("form", ["letters", "lists", "a tree"])
def test_a_pair_of_averages_is_known_under_any_name(key, form):
    found = roles({"model": {"fc.weight": torch.zeros(20, 20)}, key: own_forms()[form]})
    names = [name for name, role in found.items() if role == "weight" and not name.endswith(".t")]
    assert names == ["model.fc.weight"]


def test_a_pair_with_signs_or_of_no_weights_shape_is_two_weights():
    for second, shape in ((torch.randn(9, 9), 9), (torch.ones(9, 9), 8)):
        state = {"w": torch.zeros(shape, shape), "attention": {"m": torch.randn(9, 9), "v": second}}
        assert set(roles(state).values()) == {"weight"}


@pytest.mark.parametrize(
    "key",
    ["opt", "OPTForCausalLM", "adam_layer", "option_head", "lion", "opt_model", "adopt", "soap", "sgdnet"],
)
def test_a_part_of_a_model_that_is_called_like_an_optimizer_is_weights(key):
    part = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LSTM(4, 4))
    model = nn.ModuleDict({key: part, "head": nn.Linear(4, 2)})
    nested = {name: {"weight": tensor} for name, tensor in (("q", torch.ones(4)), ("decoder", torch.ones(4)))}
    for state in (model.state_dict(), {"model": model.state_dict()}, {key: part.state_dict()}, {key: nested}):
        assert set(roles(state).values()) == {"weight"}
