"""Copies of trained weights, by name: averages and teachers, wrapped or not; strangers are none."""

from __future__ import annotations

import pytest

from dynaquant_core.state import bare_name, copies_of

BODY = {"layers.0.fc.weight": (4, 4), "layers.1.fc.weight": (4, 4), "head.weight": (8, 4)}
MODEL = {f"model.{name}": shape for name, shape in BODY.items()}


def under(prefix: str, shapes: dict[str, tuple[int, ...]] | None = None) -> dict[str, tuple[int, ...]]:
    return {prefix + name: shape for name, shape in (shapes or BODY).items()}


@pytest.mark.parametrize(
    "prefix",
    ["ema.", "extra.ema.shadow.", "extra.ema.module.", "teacher._orig_mod.", "", "model_ema.module."],
)
def test_every_weight_of_a_copy_finds_its_original(prefix: str) -> None:
    found = copies_of(MODEL, MODEL | under(prefix))
    assert found == {prefix + name: f"model.{name}" for name in BODY}


def test_a_wrapped_model_and_a_bare_copy() -> None:
    originals = under("model._orig_mod.module.")
    found = copies_of(originals, originals | under("ema."))
    assert found == {f"ema.{name}": f"model._orig_mod.module.{name}" for name in BODY}


def test_another_shape_or_a_part_of_a_name_is_no_copy() -> None:
    strangers = {"ema.head.weight": (9, 4), "ema.0.fc.weight": (4, 4), "ema.subhead.weight": (8, 4)}
    assert copies_of(MODEL, MODEL | strangers) == {}


def test_copies_of_several_models_are_told_apart() -> None:
    originals = under("model.left.") | under("model.right.")
    copies = under("ema.left.") | under("ema.right.")
    found = copies_of(originals, originals | copies)
    assert found == {
        f"ema.{side}.{name}": f"model.{side}.{name}" for side in ("left", "right") for name in BODY
    }
    assert copies_of(originals, originals | under("ema.")) == {}, "whose average it is nobody knows"


def test_a_single_weight_has_copies_of_its_own_name_only() -> None:
    shapes = {"model.head.weight": (4, 4), "model.body.weight": (4, 4), "ema.head.weight": (4, 4)}
    assert copies_of(["model.head.weight"], shapes) == {"ema.head.weight": "model.head.weight"}
    assert copies_of(["w"], {"w": (2,), "ema.w": (2,), "v": (2,)}) == {"ema.w": "w"}


def test_without_originals_there_is_nothing_to_copy() -> None:
    assert copies_of([], MODEL) == {}
    assert copies_of(["gone"], MODEL) == {}
    assert bare_name("module") == "module"
