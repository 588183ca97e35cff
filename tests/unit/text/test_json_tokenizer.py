"""Tokenizers from tokenizer.json against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import ModelFiles, open_model
from tests.unit.text.vocabularies import CORPUS, train_byte_level

SPECIAL = ["<unk>", "<s>", "</s>"]
TEXTS = st.text() | st.lists(
    st.sampled_from([*CORPUS[:5], "</s>", " <extra> ", "<tool>", "[PAD]", " ", "\n"])
).map("".join)


def byte_level() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Like Llama 3: BOS from the post-processor; tokens that only tokenizer_config.json lists."""
    tokenizer = tokenizers.Tokenizer.from_str(train_byte_level().to_str())
    bos = tokenizer.token_to_id("<|im_start|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)]
            ),
        ]
    )
    size = tokenizer.get_vocab_size()
    listed = {
        str(size): {"content": "<tool>", "special": False, "normalized": False},
        str(size + 1): {"content": "<extra>", "special": True, "lstrip": True, "rstrip": True},
    }
    return tokenizer, {
        "bos_token": "<|im_start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
        "pad_token": "[PAD]",
        "added_tokens_decoder": listed,
        "add_bos_token": False,  # ignored by transformers where there is a tokenizer.json
    }


def sentencepiece_like() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Like Llama 2: a prepended space, byte fallback, BOS and EOS."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL + bytes_, limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def metaspace() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Like Mistral's newer files."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("[INST]", normalized=False)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def word_piece() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}


KINDS = {maker.__name__: maker for maker in (byte_level, sentencepiece_like, metaspace, word_piece)}


def files(folder: Path, **generation_config: Any) -> ModelFiles:
    (folder / "config.json").write_text('{"eos_token_id": 2}')
    (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return open_model(folder)


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    folder = tmp_path_factory.mktemp(request.param)
    backend, config = KINDS[request.param]()
    backend.enable_truncation(8)  # some files have it on; serving never truncates silently
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    reference.backend_tokenizer.no_truncation()
    return load_tokenizer(files(folder)), reference


@given(text=TEXTS)
def test_ids_and_text_are_transformers(pair, text: str):
    ours, reference = pair
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text, add_special_tokens=False)
    if (ours.vocab_entry(ids[0]) if ids else "").startswith("\u2581\u2581"):
        return  # transformers loses all leading spaces here, we only the one that was put there
    for skip in (False, True):
        expected = reference.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == expected


@given(text=st.text())
def test_special_tokens_are_transformers(pair, text: str):
    ours, reference = pair
    assert ours.encode(text) == reference.encode(text)


def test_special_token_ids_are_transformers(pair):
    ours, reference = pair
    assert ours.bos_token_id == reference.bos_token_id
    assert ours.eos_token_id == reference.eos_token_id
    assert ours.special_ids == set(reference.all_special_ids) | {
        index for index, token in reference.added_tokens_decoder.items() if token.special
    }
    assert ours.vocab_size == len(reference)
    some = range(0, ours.vocab_size, 7)
    assert [ours.vocab_entry(i) for i in some] == reference.convert_ids_to_tokens(list(some))


def test_bos_is_added_once(tmp_path: Path):
    backend, config = byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(files(tmp_path))
    once = tokenizer.encode("Hello")
    assert once[0] == tokenizer.bos_token_id
    assert tokenizer.encode("<|im_start|>Hello") == once


def test_parse_special_off_leaves_special_tokens_text(tmp_path: Path):
    backend, _ = byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(files(tmp_path))
    text = "<|im_start|>user"
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text


def test_turns_end_by_every_config(tmp_path: Path):
    backend, config = byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(files(tmp_path, eos_token_id=[5, 2]))
    assert tokenizer.eos_token_ids == (2, 5)


def test_broken_and_missing_files_are_named(tmp_path: Path):
    with pytest.raises(UnsupportedModelError, match=r"no tokenizer\.json"):
        load_tokenizer(files(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json can't be read"):
        load_tokenizer(files(tmp_path))
    (tmp_path / "tokenizer.json").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:"
    )
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is a Git LFS pointer"):
        load_tokenizer(files(tmp_path))
    backend, _ = byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not a JSON object"):
        load_tokenizer(files(tmp_path))
    for name in ("added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: 5}))
        with pytest.raises(CheckpointError, match=f"{name} is '5'"):
            load_tokenizer(files(tmp_path))
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["model"]["vocab"]["far"] = 2**32 - 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="token id 4294967295"):
        load_tokenizer(files(tmp_path))
