"""Pairs of texts as the tokenizers library itself joins them."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import open_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "a"]
PROCESSORS = {
    "bert": processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    ),
    "bert, old form": processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "roberta": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "xlm-roberta": processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    ),
    "none": None,
}  # fmt: skip


def make(kind: str, folder: Path) -> tuple[Backend, Tokenizer]:
    vocab = {word: index for index, word in enumerate(WORDS)}
    backend = Backend(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if PROCESSORS[kind] is not None:
        backend.post_processor = PROCESSORS[kind]
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({}))
    return backend, load_tokenizer(open_model(folder))


@pytest.mark.parametrize("kind", PROCESSORS)
@pytest.mark.parametrize("pair", [("one two", "three"), ("one", "two two two"), ("one", "")])
def test_pairs(kind: str, pair: tuple[str, str], tmp_path: Path) -> None:
    backend, tokenizer = make(kind, tmp_path)
    expected = backend.encode(*pair)
    bare = [tokenizer.encode(text, add_special_tokens=False) for text in pair]
    ids, start = tokenizer.pair(*bare)
    assert ids == expected.ids
    assert [int(0 < start <= at) for at in range(len(ids))] == expected.type_ids
    assert len(ids) == sum(map(len, bare)) + tokenizer.num_pair_tokens


@pytest.mark.parametrize("kind", PROCESSORS)
def test_single_texts(kind: str, tmp_path: Path) -> None:
    backend, tokenizer = make(kind, tmp_path)
    for text in ("one two", ""):
        bare = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.with_special(bare) == backend.encode(text).ids
        assert len(tokenizer.with_special(bare)) == len(bare) + tokenizer.num_special_tokens
