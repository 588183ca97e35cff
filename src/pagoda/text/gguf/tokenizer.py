"""A tokenizer from GGUF metadata alone, with the ids that llama.cpp gives.

Families: `gpt2` and `gemma4` (BPE), `llama` (SentencePiece with scores), `bert` (WordPiece).
Not read: `t5` (unigram), `rwkv`, `plamo2`, `hybriddna`, `whitespace`.
"""

from collections.abc import Mapping
from typing import Any

from pagoda.base.errors import UnsupportedModelError
from pagoda.text.gguf.bpe import bpe_parts, pre_tokenizer_of
from pagoda.text.gguf.sentencepiece import spm_parts
from pagoda.text.gguf.vocab import CONTROL, UNKNOWN, GgufVocab, end_of_turn_ids, read_vocab
from pagoda.text.gguf.wordpiece import wpm_parts
from pagoda.text.parts import SpecialTokens, TokenizerParts

_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Build the tokenizer a GGUF file describes.

    Raises CheckpointError for broken metadata, UnsupportedModelError for a family not known here.
    """
    vocab = read_vocab(metadata)
    match vocab.model:
        case "gpt2" | "gemma4":
            pre = pre_tokenizer_of(vocab)
            encoder, pieces = bpe_parts(vocab, pre)
            # Gemma 4 files say false by mistake; the model answers badly without its BOS.
            add_bos = (
                pre.add_bos if vocab.model == "gemma4" else vocab.flag("add_bos_token", pre.add_bos)
            )
            add_eos = vocab.flag("add_eos_token", False)
        case "llama":
            encoder, pieces = spm_parts(vocab)
            add_bos = vocab.flag("add_bos_token", True)
            add_eos = vocab.flag("add_eos_token", False)
        case "bert":
            encoder, pieces = wpm_parts(vocab)
            add_bos = add_eos = True
        case other:
            raise UnsupportedModelError(
                f"The GGUF file has a tokenizer of the family {other!r}, which is not read here "
                "(known: gpt2, gemma4, llama, bert). Use a checkpoint with a tokenizer.json."
            )
    return TokenizerParts(encoder, pieces, _special_tokens(vocab, add_bos, add_eos))


def _special_tokens(vocab: GgufVocab, add_bos: bool, add_eos: bool) -> SpecialTokens:
    if vocab.model == "bert":
        bos = vocab.special_id("cls", "bos")
        end = vocab.special_id("seperator", "eos")  # the key is spelled so
    else:
        bos, end = vocab.special_id("bos"), vocab.special_id("eos")
    names = {name: vocab.special_id(key) for key, name in _NAMES.items()}
    return SpecialTokens(
        bos=bos,
        eos=vocab.special_id("eos"),
        eos_ids=end_of_turn_ids(vocab),
        ids=frozenset(vocab.ids_of(CONTROL, UNKNOWN)),
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(end,) if add_eos and end is not None else (),
        names={name: vocab.tokens[index] for name, index in names.items() if index is not None},
    )
