"""Incremental text equals whole text, at every cut and for every kind of tokenizer."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.text.detokenizer import Detokenizer
from pagoda.text.gguf.tokenizer import parts_from_gguf
from pagoda.text.tokenizer import Tokenizer
from tests.unit.text.vocabularies import CORPUS, byte_level_metadata, spm_metadata

SPM_PIECES = {
    piece: -float(rank)
    for rank, piece in enumerate(["▁", "▁a", "a", "b", "ab", "▁ab", "你", "好", "é"])
}
TOKENIZERS = {
    "byte-level": Tokenizer(parts_from_gguf(byte_level_metadata())),
    "spm": Tokenizer(parts_from_gguf(spm_metadata(SPM_PIECES))),
    "spm without prefix": Tokenizer(
        parts_from_gguf(spm_metadata(SPM_PIECES, add_space_prefix=False))
    ),
}
TEXTS = st.text() | st.lists(st.sampled_from(CORPUS[:5])).map("".join)
kinds = pytest.mark.parametrize("kind", TOKENIZERS)


def pieces_of(tokenizer: Tokenizer, ids: list[int], cuts: list[int], **options) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    texts = [
        detokenizer.append(ids[start:end]) for start, end in zip(places, places[1:], strict=False)
    ]
    return [*texts, detokenizer.finish()]


@kinds
@given(text=TEXTS, skip=st.booleans())
def test_one_token_at_a_time_gives_the_whole_text(kind: str, text: str, skip: bool):
    tokenizer = TOKENIZERS[kind]
    ids = [1, *tokenizer.encode(text, add_special_tokens=False), 2]
    pieces = pieces_of(tokenizer, ids, list(range(len(ids))), skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    if skip:
        # SentencePiece writes spaces as "▁", and cannot tell one from the other.
        assert "".join(pieces) == (text if kind == "byte-level" else text.replace("▁", " "))


@kinds
@given(data=st.data(), skip=st.booleans(), cuts=st.lists(st.integers(0, 10**6)))
def test_any_ids_cut_anywhere_give_the_whole_text(kind: str, data, skip: bool, cuts: list[int]):
    """Random ids are mostly broken UTF-8, in the middle and at the end."""
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3)))
    pieces = pieces_of(tokenizer, ids, cuts, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@kinds
@given(text=TEXTS, cut=st.integers(0, 10**6))
def test_output_continues_the_prompt(kind: str, text: str, cut: int):
    """A prompt of whole characters and its output are together the text of both."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    place = cut % (len(ids) + 1)
    prompt, output = ids[:place], ids[place:]
    whole = tokenizer.decode(ids)
    if "\ufffd" in tokenizer.decode(prompt) and "\ufffd" not in whole:
        return  # cut inside a character; the next test
    detokenizer = Detokenizer(tokenizer, prompt_ids=prompt)
    text_out = detokenizer.append(output) + detokenizer.finish()
    assert tokenizer.decode(prompt) + text_out == whole


def test_a_prompt_cut_inside_a_character_gives_it_to_the_output():
    tokenizer = TOKENIZERS["spm"]
    llama = tokenizer.encode("a🦙", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, prompt_ids=llama[:-1])
    assert detokenizer.append(llama[-1:]) == "🦙"
    echo = Detokenizer(tokenizer)
    assert echo.append(llama[:-1]) + echo.append(llama[-1:]) == "a🦙"


def test_a_character_is_held_back_until_it_is_complete():
    tokenizer = TOKENIZERS["spm"]
    detokenizer = Detokenizer(tokenizer)
    bytes_ = tokenizer.encode("🦙", add_special_tokens=False)[-4:]
    assert [detokenizer.append([index]) for index in bytes_] == ["", "", "", "🦙"]
    assert detokenizer.append(bytes_[:2]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_the_invented_space_goes_only_at_the_very_beginning():
    tokenizer = TOKENIZERS["spm"]
    ids = tokenizer.encode("ab ab", add_special_tokens=False)
    assert Detokenizer(tokenizer).append(ids) == "ab ab"
    assert Detokenizer(tokenizer, prompt_ids=[1]).append(ids) == "ab ab"  # BOS is not visible
    assert Detokenizer(tokenizer, prompt_ids=[1, *ids]).append(ids) == " ab ab"


@kinds
def test_a_hundred_thousand_characters(kind: str):
    tokenizer = TOKENIZERS[kind]
    chooser = random.Random(7)
    text = "".join(chooser.choice(CORPUS[:5]) for _ in range(1700))
    assert len(text) > 100_000
    ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    assert "".join([detokenizer.append([index]) for index in ids]) + detokenizer.finish() == text
