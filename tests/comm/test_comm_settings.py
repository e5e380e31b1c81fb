"""Settings of compressed communication: what is refused, and which threshold a parameter has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynaquant_core import comm
from dynaquant_core.comm.two_bit import TwoBitSettings
from dynaquant_core.errors import ConfigError

NAMES = ["embed.weight", "h.0.fc.weight", "h.0.fc.bias", "head.weight"]


@pytest.mark.parametrize(
    "value", [0, -0.5, math.nan, math.inf, 1e-60, 1e60, 10**400, "0.5", None, True, [], {}]
)
def test_thresholds_that_are_none(value):
    with pytest.raises(ConfigError, match="threshold"):
        TwoBitSettings(threshold=value)
    if value is not None:
        with pytest.raises(ConfigError, match="negative_threshold"):
            TwoBitSettings(negative_threshold=value)
        if not isinstance(value, (dict, list)):
            with pytest.raises(ConfigError, match=r"threshold\['\*'\]"):
                TwoBitSettings(threshold={"*": value})


@pytest.mark.parametrize(
    "setting", [{"reduce": "max"}, {"warmup": -1}, {"warmup": 1.5}, {"warmup": True}, {"threshold": {3: 0.5}}]
)
def test_other_settings_that_are_none(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        TwoBitSettings(**setting)


def test_thresholds_are_those_of_float32():
    """Sender and receiver mean the same number, and 0.1 has no exact one."""
    assert TwoBitSettings(threshold=0.1).threshold == 0.10000000149011612


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor([0.5])])
def test_numbers_of_arrays_are_thresholds(value):
    """What ``p.grad.abs().mean()`` gives."""
    assert TwoBitSettings(threshold=value).threshold == 0.5


def test_the_first_pattern_that_covers_counts():
    settings = TwoBitSettings(threshold={"*.bias": 0.25, "h": 2, "*": 0.5}, negative_threshold=4)
    assert settings.limits(NAMES) == {
        "embed.weight": (0.5, 4.0),
        "h.0.fc.weight": (2.0, 4.0),
        "h.0.fc.bias": (0.25, 4.0),
        "head.weight": (0.5, 4.0),
    }
    assert TwoBitSettings(threshold=2).limits(["a"]) == {"a": (2.0, 2.0)}


def test_a_parameter_without_a_threshold_and_a_pattern_without_a_parameter():
    with pytest.raises(ConfigError, match=r"covers parameter 'h.0.fc.weight'; add one, or '\*'"):
        TwoBitSettings(threshold={"embed": 0.5}).limits(NAMES)
    with pytest.raises(
        ConfigError, match=r"'haed.weight' of threshold covers no parameter; did you mean 'head.weight'"
    ):
        TwoBitSettings(threshold={"haed.weight": 0.5, "*": 0.5}).limits(NAMES)


def test_settings_travel_as_they_are():
    settings = TwoBitSettings(threshold={"a": 0.1, "*": 0.2}, negative_threshold=0.3, reduce="sum", warmup=7)
    assert TwoBitSettings.from_bytes(settings.as_bytes()) == settings
    with pytest.raises(ConfigError, match="did you mean 'warmup'"):
        TwoBitSettings.from_dict({"warm_up": 3})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compression": "2-bit"}, "did you mean '2bit'"),
        ({"compression": "gzip"}, "known: 2bit"),
        ({"compression": ["2bit"]}, "there is no compression"),
        ({"compression": "2bit", "treshold": 0.5}, "did you mean 'threshold'"),
        (
            {"compression": "2bit", "colour": 1},
            "known: threshold, negative_threshold, reduce, warmup, scaler",
        ),
        ({"compression": "2bit", "ddp_model": 1}, "no setting 'ddp_model'"),
        ({"threshold": 0.5}, "need the key 'compression', one of '2bit'"),
        ({"compression": "2bit", "threshold": 0}, "threshold must be above 0"),
        ("2bit", "must be a mapping"),
    ],
)
def test_settings_by_name_that_do_not_exist(settings, message):
    with pytest.raises(ConfigError, match=message):
        comm.register(None, settings)
