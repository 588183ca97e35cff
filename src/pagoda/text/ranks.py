"""Tokenizers whose vocabulary is published as byte strings by rank, without a tokenizer.json:
Mistral's tekken.json, and the tiktoken.model of Kimi K2 and Moonlight."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors
from tokenizers import decoders as decoding

from pagoda.arch.read import MAX_VOCAB
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.text.bytelevel import CHAR_OF_BYTE
from pagoda.text.gguf.pretokenizers import PRE_TOKENIZERS
from pagoda.weights.choice import TEKKEN, TIKTOKEN
from pagoda.weights.jsonfile import read_json

_MAX_BYTES = 64 << 20
# Of a token; its parts are looked up one by one.
_MAX_TOKEN_BYTES = 1024
# Facts: tokenization_kimi.py of moonshotai/Kimi-K2-Instruct.
_KIMI = re.compile(r"tokenization_(?:kimi|moonshot)\w*\.TikTokenTokenizer", re.ASCII)
_KIMI_SPECIAL = 256


def ranked_backend(
    folder: Path, config: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, str]] | None:
    """The pipeline of the folder's vocabulary and the texts of its named tokens, or None where it
    has none of these files; `config` is tokenizer_config.json.

    Raises CheckpointError for broken files, UnsupportedModelError for a family not known here.
    """
    if (folder / TEKKEN).is_file():
        return _tekken(folder / TEKKEN)
    if (folder / TIKTOKEN).is_file():
        return _kimi(folder / TIKTOKEN, config), {}
    return None


def _tekken(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    told = read_json(path)
    try:
        settings = told["config"]
        pattern = str(settings["pattern"])
        reserved = int(settings["default_num_special_tokens"])
        size = int(settings["default_vocab_size"]) - reserved
        # More are listed than the model has.
        ranked = [base64.b64decode(entry["token_bytes"]) for entry in told["vocab"][:size]]
        # Older files leave out what Mistral's first tokenizers had.
        listed = told.get("special_tokens") or [
            {"rank": rank, "token_str": text} for rank, text in enumerate(_FIRST_SPECIAL)
        ]
        texts = {int(entry["rank"]): str(entry["token_str"]) for entry in listed}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a tekken.json ({error}); fetch it again.") from error
    if not 0 < reserved + len(ranked) <= MAX_VOCAB:
        raise CheckpointError(f"{path} has {reserved + len(ranked)} tokens, which no model has.")
    special = {texts.get(rank, f"<SPECIAL_{rank}>"): rank for rank in range(reserved)}
    backend = _backend(path, ranked, (pattern,), special, first=reserved)
    begin = "<s>"
    if begin in special:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B",
            special_tokens=[(begin, special[begin])],
        )  # fmt: skip
    names = {"bos_token": begin, "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return backend, {name: text for name, text in names.items() if text in special}


_FIRST_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Those of a tekken.json that lists none, by rank (mistral_common)."""


def _kimi(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    maps = json.dumps(config.get("auto_map", ""))
    if not _KIMI.search(maps):
        raise UnsupportedModelError(
            f"{path} does not say how text is cut into words; known is that of Kimi and Moonlight "
            "(auto_map in tokenizer_config.json). Save the tokenizer there as tokenizer.json, with "
            "transformers' AutoTokenizer, or take a GGUF."
        )
    ranked = _read_ranks(path)
    listed = config.get("added_tokens_decoder")
    listed = listed if isinstance(listed, dict) else {}
    special = {}
    for rank in range(len(ranked), len(ranked) + _KIMI_SPECIAL):
        entry = listed.get(str(rank))
        known = isinstance(entry, dict) and entry.get("content")
        special[str(known) if known else f"<|reserved_token_{rank}|>"] = rank
    return _backend(path, ranked, PRE_TOKENIZERS["kimi-k2"].patterns, special)


def _read_ranks(path: Path) -> list[bytes]:
    """Byte strings by rank of a file whose lines have one in base64 and its rank."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path} is larger than any vocabulary; fetch the model again.")
        lines = [line.split() for line in path.read_bytes().splitlines() if line.strip()]
        ranks = {int(rank): base64.b64decode(token, validate=True) for token, rank in lines}
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is no vocabulary ({error}); fetch it again.") from error
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        raise CheckpointError(f"{path} does not number its tokens from 0 on; fetch it again.")
    return [ranks[rank] for rank in range(len(ranks))]


def _backend(
    path: Path,
    ranked: Sequence[bytes],
    patterns: Sequence[str],
    special: Mapping[str, int],
    first: int = 0,
) -> tokenizers.Tokenizer:
    """Byte-level BPE that joins whatever two parts make the token of the lowest rank; ids count
    from `first` on, and `special` has those of control tokens."""
    tokens = ["".join(map(CHAR_OF_BYTE.__getitem__, token)) for token in ranked]
    vocab = {token: first + rank for rank, token in enumerate(tokens)}
    if max(map(len, tokens), default=0) > _MAX_TOKEN_BYTES:
        raise CheckpointError(f"{path} has tokens longer than any model's; fetch it again.")
    missing = [byte for byte, char in CHAR_OF_BYTE.items() if char not in vocab]
    if missing or len(vocab) != len(tokens) or vocab.keys() & special.keys():
        raise CheckpointError(f"{path} lacks single bytes or repeats tokens; fetch it again.")
    merges = [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    model = models.BPE(vocab={**vocab, **special}, merges=merges, ignore_merges=True)
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in special])
    words = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, letters])
    backend.decoder = decoding.ByteLevel()
    return backend
