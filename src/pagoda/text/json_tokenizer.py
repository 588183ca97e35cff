"""A tokenizer from tokenizer.json, with the ids that transformers gives."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from pagoda.arch.read import MAX_VOCAB
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.text import bytelevel
from pagoda.text.parts import (
    Pieces,
    SpecialTokens,
    TokenizerParts,
    backend_ids,
    library_faults,
    spm_bytes,
)
from pagoda.text.ranks import ranked_backend
from pagoda.weights.jsonfile import read_json
from pagoda.weights.pointer import START, refuse_pointer

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


class JsonEncoder:
    """The pipeline of tokenizer.json, added tokens and all."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = backend
        self._text_only: tokenizers.Tokenizer | None = None

    def encode(self, text: str, parse_special: bool) -> list[int]:
        backend = self._backend if parse_special else self._without_special()
        return backend_ids(backend, text)

    def _without_special(self) -> tokenizers.Tokenizer:
        # A second backend, since the switch belongs to the object and other threads encode too.
        if self._text_only is None:
            twin = tokenizers.Tokenizer.from_str(self._backend.to_str())
            twin.encode_special_tokens = True
            self._text_only = twin
        return self._text_only


def parts_from_folder(folder: Path, *, end_ids: list[int]) -> TokenizerParts:
    """Read tokenizer.json, or what stands for it (`text.ranks`), and tokenizer_config.json;
    `end_ids` end a turn by the model's configs.

    Raises CheckpointError for broken files, UnsupportedModelError where there is no tokenizer.json.
    """
    path = folder / "tokenizer.json"
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    backend, names = _backend_of(path, config)
    named = {**names, **_add_configured_tokens(backend, config)}
    encoder = JsonEncoder(backend)
    added = backend.get_added_tokens_decoder()
    pieces = _pieces(backend, path, frozenset(added))
    prefix, suffix = _template(backend)
    middle, marks_second = _pair_template(backend)
    bos, eos = (_token_id(backend, named.get(name)) for name in ("bos_token", "eos_token"))
    ends = dict.fromkeys([*([eos] if eos is not None else []), *end_ids])
    special = SpecialTokens(
        bos=bos,
        eos=eos,
        eos_ids=tuple(ends),
        ids=frozenset(index for index, token in added.items() if token.special),
        prefix=prefix,
        suffix=suffix,
        middle=middle,
        marks_second=marks_second,
        names=named,
    )
    return TokenizerParts(encoder, pieces, special)


def _backend_of(
    path: Path, config: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The pipeline of tokenizer.json, or of a file that stands for it, and the texts of the named
    tokens that it tells of itself."""
    if path.is_file():
        return _read_backend(path), {}
    ranked = ranked_backend(path.parent, config)
    if ranked is None:
        raise UnsupportedModelError(
            f"There is no tokenizer.json in {path.parent}. Save the tokenizer there with "
            "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder)."
        )
    return ranked


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        with path.open("rb") as file:
            refuse_pointer(path, file.read(START))
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}.") from error
    with library_faults(CheckpointError, f"{path} can't be read; fetch the model again"):
        backend = tokenizers.Tokenizer.from_file(str(path))
    backend.no_truncation()
    backend.no_padding()
    return backend


def _add_configured_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any]
) -> dict[str, str]:
    """Add tokens that only tokenizer_config.json knows; returns the named ones' texts."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = _field(config, "added_tokens_decoder", dict) or {}
    wanted = [_added_token(entry, False) for _, entry in sorted(listed.items(), key=_by_id)]
    named = {name: _text(config[name]) for name in _NAMED if config.get(name)}
    extra = (
        _field(config, "extra_special_tokens", (list, dict))
        or _field(config, "additional_special_tokens", (list, dict))
        or []
    )
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    wanted += [_added_token(entry, True) for entry in [*map(config.get, named), *extra]]
    backend.add_tokens([token for token in wanted if token.content not in known])
    return named


def _field(config: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    value = config.get(name)
    if value is not None and not isinstance(value, kind):
        raise CheckpointError(
            f"tokenizer_config.json: {name} is {str(value)[:80]!r}, which is not of the right "
            "type; fetch the model again."
        )
    return value


def _by_id(item: tuple[str, Any]) -> int:
    key = item[0]
    return int(key) if key.isascii() and key.isdigit() and len(key) < 20 else 0


def _added_token(entry: Any, special: bool) -> tokenizers.AddedToken:
    if not isinstance(entry, dict):
        return tokenizers.AddedToken(str(entry), special=special)
    flags = ("single_word", "lstrip", "rstrip")
    return tokenizers.AddedToken(
        _text(entry),
        special=special or bool(entry.get("special")),
        normalized=bool(entry.get("normalized", not entry.get("special"))),
        **{flag: bool(entry.get(flag)) for flag in flags},
    )


def _text(entry: Any) -> str:
    return str(entry.get("content", "")) if isinstance(entry, dict) else str(entry)


def _token_id(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _template(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and behind a text, seen on a probe."""
    encoding = backend.encode("a", add_special_tokens=True)
    mask = encoding.special_tokens_mask
    first = mask.index(0) if 0 in mask else len(mask)
    last = len(mask) - mask[::-1].index(0) if 0 in mask else len(mask)
    return tuple(encoding.ids[:first]), tuple(encoding.ids[last:])


def _pair_template(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], bool]:
    """What the post-processor puts between two texts, and whether it marks the second."""
    encoding = backend.encode("a", "a")
    owners = encoding.sequence_ids
    if not {0, 1} <= set(owners):
        return (), False
    first, second = len(owners) - owners[::-1].index(0), owners.index(1)
    return tuple(encoding.ids[first:second]), encoding.type_ids[second] == 1


def _pieces(backend: tokenizers.Tokenizer, path: Path, added: frozenset[int]) -> Pieces:
    vocab = backend.get_vocab(with_added_tokens=True)
    highest = max(vocab.values(), default=-1)
    if highest >= MAX_VOCAB:
        raise CheckpointError(f"{path} has the token id {highest}, which no model has.")
    tokens: list[str | None] = [None] * (highest + 1)
    for token, index in vocab.items():
        tokens[index] = token
    if backend.decoder is None:  # `tokenizers` joins with spaces
        return Pieces(tokens, lambda token: b" " + token.encode(), strips_leading_space=True)
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = {step["type"]: step for step in steps}
    if "ByteLevel" in kinds:
        return Pieces(tokens, bytelevel.to_bytes, added)
    if "WordPiece" in kinds:
        to_bytes = _word_piece_bytes(kinds["WordPiece"]["prefix"])
        return Pieces(tokens, to_bytes, strips_leading_space=True)
    if "Metaspace" in kinds:
        strips = kinds["Metaspace"].get("prepend_scheme", "always") != "never"
        return Pieces(tokens, spm_bytes, added, strips)
    if kinds.keys() <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return Pieces(tokens, spm_bytes, added, "Strip" in kinds)
    raise UnsupportedModelError(
        f"{path} decodes with {' and '.join(kinds)}, which is not known here; known are "
        "ByteLevel, Metaspace, WordPiece and byte fallback."
    )


def _word_piece_bytes(mark: str) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        return token[len(mark) :].encode() if token.startswith(mark) else b" " + token.encode()

    return to_bytes
