"""What a request brings as prompt -> token ids, before anything waits in a queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import ContextLengthError, RequestError
from pagoda.engine.aside.jobs import SHORT_TEXT, Encode
from pagoda.engine.media import Placed
from pagoda.engine.served.model import ServedModel

MAX_PROMPTS = 1024
# Ordinary text has 2 to 6 characters per token.
_CHARACTERS_PER_TOKEN = 8


Pieces = list[str | int]
"""One prompt: texts and token ids, one after the other."""


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    media: Sequence[Placed] = ()


def split_prompts(
    prompt: Any, param: str = "prompt", most: int = MAX_PROMPTS
) -> list[str] | list[list[int]]:
    """`str`, `[str]`, `[int]` or `[[int]]` as a list of prompts; RequestError otherwise."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if _is_ids(prompt):
            return [prompt]
        if len(prompt) > most:
            raise RequestError(f"{param} has {len(prompt)} items; at most {most} fit in one "
                               "request.", param)  # fmt: skip
        if all(isinstance(item, str) for item in prompt):
            return prompt
        if all(isinstance(item, list) and _is_ids(item) for item in prompt):
            return prompt
    raise RequestError(
        f"{param} must be a string, a list of strings, a list of token ids, or a list of such "
        "lists.",
        param,
    )


def split_pieces(given: Any, param: str, most: int = MAX_PROMPTS) -> list[Pieces]:
    """Every form of prompts that llama-server takes, as a list of prompts; RequestError for
    anything else."""
    if isinstance(given, list) and not _is_mixed(given):
        if not given or len(given) > most:
            raise RequestError(
                f"{param} has {len(given)} items; send 1 to {most} in one request.", param
            )
        return [_pieces(item, param) for item in given]
    return [_pieces(given, param)]


def _is_mixed(items: list[Any]) -> bool:
    """One prompt of ids, mixed with texts or not; a list of texts alone is several."""
    kinds = set(map(type, items))
    return kinds <= {int, str} and int in kinds


def _pieces(item: Any, param: str) -> Pieces:
    if isinstance(item, str):
        return [item]
    if isinstance(item, dict) and isinstance(item.get("prompt_string"), str):
        if item.get("multimodal_data"):
            raise RequestError("multimodal_data is not supported; leave it out.", "multimodal_data")
        return [item["prompt_string"]]
    if isinstance(item, dict) and isinstance(item.get("content"), list):
        return [_text_of_parts(item["content"], param)]
    if isinstance(item, list) and item and set(map(type, item)) <= {int, str}:
        return item
    raise RequestError(
        f"{param} must be a string, a list of token ids and strings, an object with prompt_string "
        "or with content of text parts, or a list of such prompts.",
        param,
    )


def _text_of_parts(parts: list[Any], param: str) -> str:
    texts = [
        part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"
    ]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{param}: content takes parts of type 'text' here.", param)
    return "".join(map(str, texts))


def _is_ids(items: list[Any]) -> bool:
    return bool(items) and all(type(item) is int for item in items)


async def encode(
    served: ServedModel,
    text: str,
    *,
    add_special_tokens: bool,
    truncates: bool,
    param: str,
    what: str = "prompt",
) -> list[int]:
    """Token ids of `text`. A hopelessly long one is refused after a look at its beginning; `what`
    it is says the error."""
    limit = served.max_model_len
    head = limit * _CHARACTERS_PER_TOKEN
    if len(text) > 2 * head and not truncates:
        count = len(await tokenize(served, text[:head]))
        if count > limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens. However, your {what} "
                f"contains at least {count} input tokens. Please reduce the length of the {what}.",
                param,
            )
    return await tokenize(served, text, add_special_tokens=add_special_tokens)


async def tokenize(served: ServedModel, text: str, **options: bool) -> list[int]:
    """`Tokenizer.encode`, aside from the event loop where it takes long."""
    if len(text) <= SHORT_TEXT:
        return served.tokenizer.encode(text, **options)
    return await served.aside.encode(Encode(text, **options))
