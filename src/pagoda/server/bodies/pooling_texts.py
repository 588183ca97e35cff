"""The texts of a pooling request -> token ids: truncated if asked, and paired."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.core.messages import Alignment
from pagoda.engine.aside.jobs import RenderPair
from pagoda.engine.media import Placed
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Pieces, encode, split_pieces, tokenize
from pagoda.server.media import has_media
from pagoda.server.messages import render_prompt
from pagoda.server.protocol.pooling import InputBody, PoolingBody

MAX_TEXTS = 2048
"""OpenAI's limit of one request."""


@dataclass(frozen=True)
class PooledText:
    ids: list[int]
    pair_start: int = 0
    """As in PoolingParams."""
    alignment: Alignment | None = None
    """As there, with the sound in front of the text in..."""
    media: Sequence[Placed] = ()


async def input_texts(
    served: ServedModel, body: PoolingBody, given: Any, param: str
) -> list[PooledText]:
    """A text, texts, token ids or lists of them, mixed or not, truncated as the body says."""
    texts = []
    for pieces in split_pieces(given, param, MAX_TEXTS):
        if len(pieces) == 1 and isinstance(pieces[0], str):
            ids = await _text_ids(served, body, pieces[0], param)
        else:
            ids = await _mixed_ids(served, body, pieces, param)
        texts.append(PooledText(ids))
        await asyncio.sleep(0)  # a thousand texts take a second, and others want theirs
    return texts


async def body_texts(served: ServedModel, body: InputBody) -> list[PooledText]:
    """Those of `input` or `messages`."""
    if (body.input is None) == (body.messages is None):
        raise RequestError("Send one of input and messages.", "input")
    if body.messages is None:
        return await input_texts(served, body, body.input, "input")
    shown = await render_prompt(
        served,
        body.messages,
        tools=[],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
    )
    if has_media(body.messages):
        raise RequestError(
            "Vectors and scores are of text only; leave images and videos out.", "messages"
        )
    ids = await tokenize(served, shown.text, add_special_tokens=bool(body.add_special_tokens))
    return [PooledText(cut(ids, most_tokens(served, body), body))]


async def bare_ids(served: ServedModel, texts: list[str], param: str) -> list[list[int]]:
    """Token ids without special tokens, for pairs."""
    ids = []
    for text in texts:
        truncated = await encode(
            served, text, add_special_tokens=False, truncates=True, param=param
        )
        ids.append(truncated)
        await asyncio.sleep(0)
    return ids


def single_ids(served: ServedModel, body: PoolingBody, ids: list[int]) -> PooledText:
    """A text between special tokens, which stay when it is cut: vectors are read off them."""
    most = most_tokens(served, body)
    if most is not None:
        ids = cut(ids, max(0, most - served.tokenizer.num_special_tokens), body)
    return PooledText(served.tokenizer.with_special(ids))


async def pair_ids(
    served: ServedModel, body: PoolingBody, first: list[int], second: list[int]
) -> PooledText:
    """Two texts as one, by the model's template for pairs where it has one; of a pair that is cut,
    the longer text loses first."""
    most = most_tokens(served, body)
    template = served.chat_template
    if template is not None and template.takes_pairs:
        return PooledText(await _rendered_pair(served, body, first, second))
    if most is not None:
        first, second = _fitting(first, second, most - served.tokenizer.num_pair_tokens, body)
    return PooledText(*served.tokenizer.pair(first, second))


async def _rendered_pair(
    served: ServedModel,
    body: PoolingBody,
    first: list[int],
    second: list[int],
) -> list[int]:
    """Only the texts are cut: the template's own words stay."""
    most, decode = most_tokens(served, body), served.tokenizer.decode
    while True:
        await asyncio.sleep(0)  # as in `input_texts`
        shown = await served.aside.render(RenderPair(decode(first), decode(second)))
        ids = await tokenize(served, shown.text, add_special_tokens=False)
        length = len(first) + len(second)
        if most is None or len(ids) <= most or not length:
            return ids
        first, second = _fitting(first, second, length - (len(ids) - most), body)


def _fitting(
    first: list[int], second: list[int], room: int, body: PoolingBody
) -> tuple[list[int], list[int]]:
    room = max(0, room)
    short = min(len(first), len(second), room // 2)
    first = cut(first, max(short, room - len(second)), body)
    return first, cut(second, room - len(first), body)


def most_tokens(served: ServedModel, body: PoolingBody) -> int | None:
    """What a prompt is to be cut to; None: not at all."""
    most = body.truncate_prompt_tokens
    if most is not None and most > served.max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens is {most}, and this model takes {served.max_model_len} "
            "tokens; -1 fits it.",
            "truncate_prompt_tokens",
        )
    return served.max_model_len if most == -1 else most


def cut(ids: list[int], most: int | None, body: PoolingBody) -> list[int]:
    if most is None or len(ids) <= most:
        return ids
    return ids[len(ids) - most :] if body.truncation_side == "left" else ids[:most]


async def _text_ids(served: ServedModel, body: PoolingBody, text: str, param: str) -> list[int]:
    special = body.add_special_tokens is not False
    most = most_tokens(served, body)
    if most is None:
        return await encode(served, text, add_special_tokens=special, truncates=False, param=param)
    ids = await tokenize(served, text, add_special_tokens=False)
    return single_ids(served, body, ids).ids if special else cut(ids, most, body)


async def _mixed_ids(
    served: ServedModel, body: PoolingBody, pieces: Pieces, param: str
) -> list[int]:
    """Ids as they were sent; special tokens go around them where text comes first."""
    ids: list[int] = []
    cuts = most_tokens(served, body) is not None
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += await encode(
                served, piece, add_special_tokens=False, truncates=cuts, param=param
            )
            await asyncio.sleep(0)
    if isinstance(pieces[0], str) and body.add_special_tokens is not False:
        return single_ids(served, body, ids).ids
    return cut(ids, most_tokens(served, body), body)
