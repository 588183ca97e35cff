import math

import pytest

from pagoda.arch.read import Reader, config_reader
from pagoda.base.errors import CheckpointError


def _reader(**values) -> Reader:
    return Reader(values, "config.json")


@pytest.mark.parametrize("value", [0, -1, 101, 1.0, 2.5, "8", True, None, [8], math.nan])
def test_integer_refuses(value):
    with pytest.raises(CheckpointError, match=r"config\.json: size "):
        _reader(size=value).integer("size", 100)


def test_integer_reads():
    assert _reader(size=100).integer("size", 100) == 100
    assert _reader(size=0).integer("size", 100, minimum=0) == 0
    assert _reader(size=None).integer("size", 100, 7) == 7


@pytest.mark.parametrize("value", [0, -0.5, 1e13, math.inf, math.nan, "1", True, None])
def test_number_refuses(value):
    with pytest.raises(CheckpointError, match="theta"):
        _reader(theta=value).number("theta")


def test_integers_of_layers():
    assert _reader(heads=4).integers("heads", 3, 100) == (4, 4, 4)
    assert _reader(heads=[4, 2, 1]).integers("heads", 3, 100) == (4, 2, 1)
    with pytest.raises(CheckpointError, match="lists 2 values for 3 layers"):
        _reader(heads=[4, 2]).integers("heads", 3, 100)
    with pytest.raises(CheckpointError, match="heads must be between 1 and 100, not 0"):
        _reader(heads=[4, 0, 1]).integers("heads", 3, 100)


def test_flags_texts_and_sections():
    reader = _reader(flag="false", text=3, texts=["a", 1], part=[1])
    for read in (
        lambda: reader.flag("flag"),
        lambda: reader.text("text"),
        lambda: reader.texts("texts"),
        lambda: reader.section("part"),
    ):
        with pytest.raises(CheckpointError):
            read()
    with pytest.raises(CheckpointError, match="rope: factor is missing"):
        _reader(rope={"factor": None}).section("rope").number("factor")
    assert reader.section("absent") is None


def test_token_ids():
    reader = _reader(one=2, many=[1, 5], negative=-1)
    assert reader.token_ids("one") == (2,)
    assert reader.token_ids("many") == (1, 5)
    assert reader.token_ids("none") == ()
    with pytest.raises(CheckpointError, match="negative"):
        reader.token_ids("negative")


def test_text_config_wins_over_the_top():
    reader = config_reader({"hidden_size": 8, "tie": True, "text_config": {"hidden_size": 16}})
    assert reader.integer("hidden_size", 100) == 16
    assert reader.flag("tie") is True


def test_prefix_is_named():
    with pytest.raises(CheckpointError, match=r"GGUF metadata: llama\.block_count is missing"):
        Reader({}, "GGUF metadata", "llama.").integer("block_count", 10)
