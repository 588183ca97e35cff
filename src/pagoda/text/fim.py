"""Fill in the middle: the special tokens that stand around prefix and suffix."""

from dataclasses import dataclass

from pagoda.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FimTokens:
    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    """Before a repository's name; with `file`, other files may come before the prefix."""
    file: int | None = None
    """Before a file's name."""


# Written in the order prefix, suffix, middle by all of these families.
_FAMILIES = (
    # Qwen coder, StarCoder 2, CodeGemma, Granite, DeepSeek coder, GLM, CodeLlama.
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<reponame>", ""),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "", ""),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "", ""),
    ("▁<PRE>", "▁<SUF>", "▁<MID>", "", ""),
)


def fim_tokens(tokenizer: Tokenizer) -> FimTokens | None:
    """Those of the model's vocabulary; None for a model that was not trained for it."""
    for names in _FAMILIES:
        prefix, suffix, middle, repository, file = (_token(tokenizer, name) for name in names)
        if prefix is not None and suffix is not None and middle is not None:
            return FimTokens(prefix, suffix, middle, repository, file)
    return None


def infill_prompt(
    tokenizer: Tokenizer,
    fim: FimTokens,
    prefix: str,
    suffix: str,
    begun: str,
    files: list[tuple[str, str]],
    room: int,
) -> list[int]:
    """Token ids that ask for what belongs between `prefix` and `suffix` and starts with `begun`.

    `files` are names and texts of other files; of them the last so many tokens that all of it
    stays within `room`.
    """
    inside = [
        *tokenizer.with_special([]),
        fim.prefix,
        *_text(tokenizer, prefix + begun),
        fim.suffix,
        *_text(tokenizer, suffix),
        fim.middle,
    ]
    extra = _extra(tokenizer, fim, files)
    keep = max(0, min(len(extra), room - len(inside)))
    return extra[len(extra) - keep :] + inside


def _extra(tokenizer: Tokenizer, fim: FimTokens, files: list[tuple[str, str]]) -> list[int]:
    if not files:
        return []
    ids: list[int] = []
    if fim.repository is not None:
        ids += [fim.repository, *_text(tokenizer, "repository\n")]
    for name, text in files:
        ids += [fim.file] if fim.file is not None else []
        ids += _text(tokenizer, f"{name}\n{text}\n")
    if fim.file is not None:
        ids += [fim.file, *_text(tokenizer, "current\n")]
    return ids


def _text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Code is text: a special token's name in it is none."""
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def _token(tokenizer: Tokenizer, name: str) -> int | None:
    if not name:
        return None
    ids = tokenizer.encode(name, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and tokenizer.vocab_entry(ids[0]) == name else None
