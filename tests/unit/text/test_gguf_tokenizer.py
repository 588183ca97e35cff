import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.base.errors import CheckpointError, RequestError, UnsupportedModelError
from pagoda.text.gguf.pretokenizers import PRE_TOKENIZERS
from pagoda.text.gguf.tokenizer import parts_from_gguf
from pagoda.text.tokenizer import Tokenizer
from tests.unit.text.vocabularies import (
    CONTROL,
    CORPUS,
    UNKNOWN,
    USER_DEFINED,
    byte_level_metadata,
    spm_metadata,
    train_byte_level,
)

BYTE_LEVEL = byte_level_metadata()
TRAINED = train_byte_level()
TEXTS = st.text() | st.lists(st.sampled_from(CORPUS[:5] + ["<|im_end|>", " ", "\n"])).map("".join)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return Tokenizer(parts_from_gguf(BYTE_LEVEL))


@given(text=TEXTS)
def test_byte_level_round_trip(byte_level, text: str):
    for parse_special in (True, False):
        ids = byte_level.encode(text, add_special_tokens=False, parse_special=parse_special)
        assert byte_level.decode(ids) == text


@given(text=TEXTS)
def test_byte_level_ids_are_those_of_the_trained_tokenizer(byte_level, text: str):
    expected = TRAINED.encode(text, add_special_tokens=False).ids
    assert byte_level.encode(text, add_special_tokens=False) == expected


def test_control_tokens_are_parsed_only_when_asked(byte_level):
    text = "<|im_start|>user"
    parsed = byte_level.encode(text, add_special_tokens=False)
    plain = byte_level.encode(text, add_special_tokens=False, parse_special=False)
    assert parsed[0] == 1
    assert not set(plain) & {0, 1, 2}
    assert byte_level.decode(parsed, skip_special_tokens=True) == "user"


def test_user_defined_tokens_are_always_parsed():
    types = list(BYTE_LEVEL["tokenizer.ggml.token_type"])
    types[1] = USER_DEFINED
    tokenizer = Tokenizer(parts_from_gguf(byte_level_metadata(token_type=types)))
    assert tokenizer.encode("<|im_start|>", parse_special=False) == [1]
    assert 1 not in tokenizer.special_ids


def test_turns_end_with_every_token_known_to_end_one(byte_level):
    assert byte_level.eos_token_id == 2
    assert byte_level.eos_token_ids == (0, 2)


def test_bos_is_added_once():
    tokenizer = Tokenizer(parts_from_gguf(byte_level_metadata(add_bos_token=True)))
    once = tokenizer.encode("Hello")
    assert once[0] == 1
    assert tokenizer.encode("<|im_start|>Hello") == once
    assert tokenizer.encode("Hello", add_special_tokens=False) == once[1:]
    assert tokenizer.encode("") == [1]


def test_eos_is_added_when_the_file_says_so():
    tokenizer = Tokenizer(parts_from_gguf(byte_level_metadata(add_eos_token=True)))
    assert tokenizer.encode("Hello")[-1] == 2
    assert tokenizer.encode("Hello<|im_end|>") == tokenizer.encode("Hello")


def test_duplicate_and_useless_merges_are_harmless(byte_level):
    merges = list(BYTE_LEVEL["tokenizer.ggml.merges"])
    tokenizer = Tokenizer(parts_from_gguf(byte_level_metadata(merges=[*merges, *merges, "zz qq"])))
    assert tokenizer.encode(CORPUS[0]) == byte_level.encode(CORPUS[0])


# Scores and expected tokens follow llama.cpp's rule by hand: highest score, then leftmost.
@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        # A character that is no token ("b") still merges.
        ({"a": -1.0, "ab": -2.0}, "ab", ["ab"]),
        ({"a": -1.0, "ab": -2.0}, "b", ["<0x62>"]),
        # Equal scores: the leftmost pair wins, whichever comes first in the vocabulary.
        ({"a": -9.0, "b": -9.0, "c": -9.0, "bc": -1.0, "ab": -1.0}, "abc", ["ab", "c"]),
        ({"a": -9.0, "aa": -0.5, "aaa": -1.0, "aaaa": -2.0}, "aaaaa", ["aa", "aaa"]),
        # A better score elsewhere is merged first.
        ({"a": -9.0, "b": -9.0, "c": -9.0, "ab": -3.0, "bc": -2.0}, "abc", ["a", "bc"]),
        ({"\u2581": -5.0, "\u2581a": -1.0, "a": -9.0}, " a", ["\u2581a"]),
        ({"x": -1.0}, "é", ["<0xC3>", "<0xA9>"]),
    ],
)
def test_spm_merges_by_score(pieces, text, expected):
    tokenizer = Tokenizer(parts_from_gguf(spm_metadata(pieces, add_space_prefix=False)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.vocab_entry(index) for index in ids] == expected


def test_spm_prefixes_a_space_behind_special_tokens_and_takes_the_first_away():
    tokenizer = Tokenizer(
        parts_from_gguf(spm_metadata({"\u2581": -2.0, "a": -1.0, "\u2581a": 0.0}))
    )
    ids = tokenizer.encode("a</s>a")
    assert [tokenizer.vocab_entry(index) for index in ids] == ["<s>", "\u2581a", "</s>", "\u2581a"]
    assert tokenizer.decode(ids) == "<s> a</s> a"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a a"


def test_unknown_ids_are_no_text(byte_level):
    assert byte_level.decode([10**6, -1]) == ""
    assert byte_level.vocab_entry(-1) is None


def test_lone_surrogates_are_refused(byte_level):
    with pytest.raises(RequestError, match="U\\+D83D"):
        byte_level.encode("a\ud83d")


def test_errors_say_what_is_wrong():
    with pytest.raises(UnsupportedModelError, match="nearest known is 'qwen2'"):
        parts_from_gguf(byte_level_metadata(pre="qwen2x"))
    with pytest.raises(UnsupportedModelError, match="family 'rwkv'"):
        parts_from_gguf(byte_level_metadata(model="rwkv"))
    with pytest.raises(CheckpointError, match="no vocabulary"):
        parts_from_gguf({})
    with pytest.raises(CheckpointError, match="no merges"):
        parts_from_gguf(byte_level_metadata(merges=[]))
    with pytest.raises(CheckpointError, match="token_type has 1 entries"):
        parts_from_gguf(byte_level_metadata(token_type=[CONTROL]))
    for key in ("tokens", "merges", "token_type", "scores"):
        for lie in ("abc", 5, [None] * 1000):
            with pytest.raises(CheckpointError, match=f"{key} is not an array"):
                parts_from_gguf(byte_level_metadata(**{key: lie}))
    for lie in (5, ["gpt-2"], 2.5):
        with pytest.raises(CheckpointError, match="ggml.pre is"):
            parts_from_gguf(byte_level_metadata(pre=lie))


def test_types_beyond_the_tokens_are_cut_off():
    types = [*BYTE_LEVEL["tokenizer.ggml.token_type"], CONTROL, CONTROL]
    tokenizer = Tokenizer(parts_from_gguf(byte_level_metadata(token_type=types)))
    assert max(tokenizer.special_ids) < tokenizer.vocab_size


BYTE_LEVEL_FAMILIES = sorted(name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level)


@pytest.mark.parametrize("name", BYTE_LEVEL_FAMILIES)
def test_every_pre_tokenizer_compiles_and_loses_nothing(name: str):
    metadata = byte_level_metadata(pre=name, add_bos_token=False)
    tokenizer = Tokenizer(parts_from_gguf(metadata))
    text = "".join(CORPUS[:5]) + "I'LL  pay $1,234,567.89!!\r\n\r\n  …（全角）ABC1234 x"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_token_needs_no_type_of_its_own():
    """WordPiece looks it up by its text, whatever the file says that it is."""
    words = {"tokens": ["[UNK]", "[CLS]", "[SEP]", "\u2581a"], "unknown_token_id": 0,
             "cls_token_id": 1, "seperator_token_id": 2, "model": "bert"}  # fmt: skip
    typed = {**words, "token_type": [UNKNOWN, CONTROL, CONTROL, 1]}
    plain, known = (
        Tokenizer(parts_from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()}))
        for keys in (words, typed)
    )
    assert plain.encode("a zzz") == known.encode("a zzz") == [1, 3, 0, 2]
