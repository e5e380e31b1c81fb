"""Which weight an optimizer's tensors belong to: by name, by number, with groups, ties and frozen ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dynaquant_core.state import assign_roles, bare_name, flatten, owned_by
from dynaquant_core.state import numbers as numbers_module
from dynaquant_core.state import owners as owners_module
from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject


class Block(nn.Module):
    """Shapes repeat, a weight is tied, and "norm.weight" ends another parameter's name."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(20, 8)
        self.block = nn.ModuleDict({"fc": nn.Linear(8, 8), "norm": nn.LayerNorm(8)})
        self.fc = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("running_mean", torch.zeros(8))

    def forward(self, x):
        x = self.wte(x)
        return self.head(self.norm(self.fc(self.block["norm"](self.block["fc"](x)))))


def stepped(model, make):
    """A state whose second moments tell weights apart: each gradient is its parameter's number."""
    optimizer = make(model)
    for number, parameter in enumerate(model.parameters(), 1):
        parameter.grad = torch.full_like(parameter, float(number)) if parameter.requires_grad else None
    optimizer.step()
    return optimizer


def adamw(model):
    return torch.optim.AdamW(model.parameters())


def grouped(model):
    """Weight decay for matrices alone, as nearly every recipe has it."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}])


def owners(tree, **known):
    """Weight -> the number that its gradients were, by what `owned_by` found for it."""
    leaves = flatten(tree).leaves
    weights = [name for name, role in assign_roles(leaves).items() if role == "weight"]
    found = owned_by(leaves, weights, **known)
    return {name: round(float((1000 * kinds["exp_avg_sq"].mean()).sqrt())) for name, kinds in found.items()}


def expected(model, prefix="model."):
    named = {name: number for number, (name, _) in enumerate(model.named_parameters(), 1)}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {prefix + name: number for name, number in named.items() if name in trained}


@pytest.mark.parametrize("make", [adamw, grouped])
@pytest.mark.parametrize("naming", ["named", "numbered"])
def test_every_weight_gets_its_own(make, naming):
    model = Block()
    optimizer = stepped(model, make)
    if naming == "named":
        tree = capture(Subject(model, optimizer), 1)
    else:
        tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert owners(tree) == expected(model)


@pytest.mark.parametrize("ours", ["", "module.", "_orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("theirs", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_on_either_side_hide_nobody(ours, theirs):
    model = Block()
    tree = capture(Subject(model, stepped(model, adamw)), 1)
    weights = {ours + name: tensor for name, tensor in tree["model"].items()}
    state = {theirs + name: kinds for name, kinds in tree["optimizer"]["state"].items()}
    tree |= {"model": weights, "optimizer": tree["optimizer"] | {"state": state}}
    assert owners(tree) == expected(model, f"model.{ours}")


def test_a_wrapper_inside_a_name_hides_nobody():
    tree = {
        "model": {"body._orig_mod.fc.weight": torch.zeros(4, 4), "head.module": torch.zeros(4, 4)},
        "optimizer": {
            "state": {
                "body.fc.weight": {"exp_avg_sq": torch.full((4, 4), 1e-3)},
                "head.module": {"exp_avg_sq": torch.full((4, 4), 4e-3)},
            },
            "param_groups": [],
        },
    }
    assert owners(tree) == {"model.body._orig_mod.fc.weight": 1, "model.head.module": 2}


def test_a_module_that_is_called_module_is_told_from_a_wrapper():
    names = ("module.w", "w")
    tree = {
        "model": {name: torch.zeros(4, 4) for name in names},
        "optimizer": {
            "state": {
                name: {"exp_avg_sq": torch.full((4, 4), k * k * 1e-3)} for k, name in enumerate(names, 1)
            },
            "param_groups": [],
        },
    }
    assert owners(tree) == {"model.module.w": 1, "model.w": 2}


@pytest.mark.parametrize("naming", ["named", "numbered"])
def test_frozen_parameters_own_nothing(naming):
    model = Block()
    for parameter in (model.block["fc"].weight, model.wte.weight, model.norm.bias):
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    stepped(model, lambda _: optimizer)
    if naming == "named":
        assert owners(capture(Subject(model, optimizer), 1)) == expected(model)
        return
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert owners(tree) == {}  # numbers say no more than an order of shapes
    frozen = {f"model.{name}" for name, one in model.named_parameters() if not one.requires_grad}
    assert owners(tree, untrained=frozenset({*frozen, "model.head.weight"})) == expected(model)


@pytest.mark.parametrize("copies", [False, True])
def test_a_running_optimizer_knows_whose_its_tensors_are(copies):
    """Whatever is frozen, wherever buffers lie, and in whatever order it was given the parameters."""
    model = Block()
    model.block["fc"].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained[::-1])
    stepped(model, lambda _: optimizer)
    weights = {name: tensor.clone() if copies else tensor for name, tensor in model.state_dict().items()}
    tree = {"model": weights, "optimizer": optimizer.state_dict()}
    known = {"optimizers": [optimizer], "parameters": dict(model.named_parameters())}
    assert owners(tree, **known) == expected(model)


def test_where_buffers_have_the_shape_of_vectors_their_numbers_mean_nobody():
    model = Block()
    model.register_buffer("std", torch.ones(8))
    optimizer = stepped(model, adamw)
    found = owners({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert found == {
        name: number
        for name, number in expected(model).items()
        if name.endswith("weight") and "norm" not in name
    }


@pytest.mark.parametrize("first", ["ema", "model"])
def test_an_average_of_the_model_takes_nothing_from_it(first):
    model = Block()
    optimizer = stepped(model, adamw)
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parts = {"ema": {"shadow": average, "n": 3}, "model": model.state_dict()}
    tree = {first: parts.pop(first), **parts, "optimizer": optimizer.state_dict()}
    assert owners(tree) == expected(model)


@pytest.mark.parametrize("part", ["semantic", "schemaHead", "system_a", "retargeting", "SEMANTICS"])
@pytest.mark.parametrize("average", ["ema", "model_ema", "emaModel", "EMA2", "averaged_model", "targetNet"])
def test_a_part_whose_name_holds_that_of_an_average_by_chance_is_trained(part, average):
    """Neither it nor anything else of the model got its moments."""
    model = nn.ModuleDict({"body": nn.Linear(8, 8), part: nn.Linear(8, 4)})
    optimizer = stepped(model, adamw)
    tree = {
        "body": model["body"].state_dict(),
        part: model[part].state_dict(),
        average: {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
    }
    assert owners(tree) == expected(model, "")


def test_several_optimizers_over_several_models():
    models = {"left": Block(), "right": Block()}
    optimizers = {key: stepped(model, adamw) for key, model in models.items()}
    whole = expected(models["left"], "model.left.") | expected(models["right"], "model.right.")
    assert owners(capture(Subject(models, optimizers), 1)) == whole
    numbered = {
        "model": {key: model.state_dict() for key, model in models.items()},
        "optimizer": {key: optimizer.state_dict() for key, optimizer in optimizers.items()},
    }
    assert owners(numbered) == whole


def test_an_optimizer_state_that_lies_in_a_state_of_a_framework():
    model = Block()
    optimizer = stepped(model, adamw)
    inner = capture(Subject(model, optimizer), 1)
    tree = {"state": {"model": inner["model"], "optimizers": {"AdamW": inner["optimizer"]}}}
    assert owners(tree) == expected(model, "state.model.")


def test_moments_of_other_shapes_belong_to_nobody_and_shift_nothing():
    weights = {"a": torch.zeros(6, 4), "b": torch.zeros(6, 4), "c": torch.zeros(4)}
    state = {
        0: {"exp_avg_sq_row": torch.ones(6), "exp_avg_sq_col": torch.ones(3), "step": torch.tensor(1.0)},
        1: {"exp_avg_sq": torch.full((6, 4), 1e-3)},
        2: {"exp_avg_sq": torch.full((4,), 4e-3)},
        3: {"step": torch.tensor(1.0)},
    }
    tree = {"model": weights, "optimizer": {"state": state, "param_groups": []}}
    assert owners(tree) == {"model.c": 2}


def test_without_an_optimizer_or_before_its_first_step_nobody_owns_anything():
    model = Block()
    leaves = flatten(capture(Subject(model, adamw(model)), 0)).leaves
    assert owned_by(leaves, ["model.fc.weight"]) == {}
    assert owned_by([], ["w"]) == {}


def test_plain_sgd_has_no_state_and_momentum_has():
    for momentum, count in ((0.0, 0), (0.9, 10)):
        model = Block()
        optimizer = stepped(model, lambda m, p=momentum: torch.optim.SGD(m.parameters(), 0.1, momentum=p))
        leaves = flatten(capture(Subject(model, optimizer), 1)).leaves
        weights = [name for name, role in assign_roles(leaves).items() if role == "weight"]
        found = owned_by(leaves, weights)
        assert len(found) == (count and len(expected(model)))
        assert all(set(kinds) == {"momentum_buffer"} for kinds in found.values())


@pytest.mark.parametrize("make", [adamw, grouped])
def test_running_statistics_are_nobodys(make):
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))))
    optimizer = stepped(model, make)
    assert owners({"model": model.state_dict(), "optimizer": optimizer.state_dict()}) == expected(model)


@pytest.mark.parametrize("make", [adamw, grouped])
@pytest.mark.parametrize("unused", [("wte.weight",), ("block.fc.weight",), ("wte.weight", "block.fc.weight")])
def test_parameters_that_have_never_had_a_gradient_shift_no_others(make, unused):
    """An expert that nothing was routed to: torch leaves its number out."""
    model = Block()
    parameters = dict(model.named_parameters())
    numbers = {f"model.{name}": number for number, name in enumerate(parameters, 1)}
    optimizer = make(model)
    for number, (name, parameter) in enumerate(parameters.items(), 1):
        parameter.grad = None if name in unused else torch.full_like(parameter, float(number))
    optimizer.step()
    found = owners({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    matrices = {name: number for name, number in found.items() if parameters[name[6:]].dim() > 1}
    assert matrices == {name: numbers[name] for name in matrices}
    if make is adamw:
        assert found == {name: number for name, number in numbers.items() if name[6:] not in unused}


@pytest.mark.parametrize("unused", [0, 1, 2])
def test_an_expert_that_nothing_was_routed_to_takes_no_others_moments(unused):
    """Layers of one shape in a row, all in one group: only the numbers tell them apart."""
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    optimizer = adamw(experts)
    for number, (name, parameter) in enumerate(experts.named_parameters(), 1):
        used = not name.startswith(f"{unused}.")
        parameter.grad = torch.full_like(parameter, float(number)) if used else None
    optimizer.step()
    found = owners({"model": experts.state_dict(), "optimizer": optimizer.state_dict()})
    numbers = {f"model.{name}": number for number, (name, _) in enumerate(experts.named_parameters(), 1)}
    others = {name: number for name, number in numbers.items() if f"model.{unused}." not in name}
    assert found == (others if unused < 2 else {})  # the last may as well be a frozen one


def test_names_of_thousands_of_parameters_are_looked_up(monkeypatch):
    """Every save asks, while training waits: it must not go through all weights for each parameter."""
    count, asked = 3000, []
    monkeypatch.setattr(owners_module, "bare_name", lambda name: asked.append(name) or bare_name(name))
    weights = {f"layers.{at // 4}.experts.{at % 4}.weight": torch.zeros(2, 2) for at in range(count)}
    moments = {
        f"module.{name}": {"exp_avg": torch.full((2, 2), float(at))} for at, name in enumerate(weights)
    }
    leaves = flatten({"model": weights, "optimizer": {"state": moments, "param_groups": []}}).leaves
    found = owned_by(leaves, [leaf.name for leaf in leaves if not leaf.in_optimizer])
    assert [int(kinds["exp_avg"][0, 0]) for kinds in found.values()] == list(range(count))
    assert len(asked) <= 2 * count


SHAPES = st.sampled_from([(2,), (3,), (2, 3)])


@given(
    st.dictionaries(st.integers(0, 30), st.sets(SHAPES, min_size=1, max_size=2)),
    st.lists(SHAPES, max_size=20),
)
def test_each_number_gets_the_next_weight_of_one_of_its_shapes(own, shapes):
    """The same as walking along all weights for each number."""
    weights = {f"w{at}": shape for at, shape in enumerate(shapes)}
    expected, place, before, known = {}, 0, -1, True
    for number in sorted(own):
        start = place + (number - before - 1 if known else 0)
        at = next((at for at in range(start, len(shapes)) if shapes[at] in own[number]), None)
        before, known = number, at is not None
        if at is not None:
            expected[number], place = f"w{at}", at + 1
    assert numbers_module._aligned({number: own[number] for number in sorted(own)}, weights) == expected
