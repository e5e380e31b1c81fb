"""Every codec of the table passes every check of the kit."""

import pytest

from dynaquant_core.coding import codec_by_id, codec_by_name, codec_name
from dynaquant_core.coding.codec import Codec
from dynaquant_core.coding.registry import CODECS
from dynaquant_core.errors import UnknownCodecError
from tests import conformance

EVERY = pytest.mark.parametrize("name", conformance.CASES)


def test_the_table_holds_every_codec():
    assert {name: case.id for name, case in conformance.CASES.items()} == {
        name: number for number, (name, _) in CODECS.items()
    }
    for number, (name, _) in CODECS.items():
        codec = codec_by_id(number)
        assert isinstance(codec, Codec)
        assert (codec.id, codec.name) == (number, name)
        assert codec_by_name(name) is codec


def test_unknown_codecs_are_named():
    with pytest.raises(UnknownCodecError, match="codec id 77"):
        codec_by_id(77)
    with pytest.raises(UnknownCodecError, match="rans_context"):
        codec_by_name("brotli")
    assert codec_name(77) == "codec 77"


@EVERY
def test_roundtrip(name):
    conformance.check_roundtrip(conformance.CASES[name])


@EVERY
def test_refuses_unsuitable(name):
    conformance.check_refuses_unsuitable(conformance.CASES[name])


@EVERY
def test_hostile_bytes(name):
    conformance.check_hostile(conformance.CASES[name])


@EVERY
def test_threads(name):
    conformance.check_threads(conformance.CASES[name])


@EVERY
def test_frozen_bytes(name):
    conformance.check_frozen_bytes(name, conformance.CASES[name])
