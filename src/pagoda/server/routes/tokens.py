"""POST /tokenize and POST /detokenize, in vLLM's and in llama-server's words."""

import asyncio
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.prompts import tokenize
from pagoda.server.bodies.volume import MAX_ITEMS
from pagoda.server.context import context_of
from pagoda.server.media import MediaLoader
from pagoda.server.messages import render_prompt
from pagoda.server.openapi import describe
from pagoda.server.protocol.replies import Piece, Text, Tokens
from pagoda.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from pagoda.server.replies.respond import json_reply

router = APIRouter()


@router.post("/tokenize", openapi_extra=describe(TokenizeRequest, Tokens))
async def tokenize_text(request: Request) -> Response:
    body = await read_body(request, TokenizeRequest)
    served = await context_of(request).served(request, body.model)
    ids = await _encode(body, served)
    if len(ids) > MAX_ITEMS:
        raise RequestError(
            f"The text has {len(ids)} tokens, and a reply lists at most {MAX_ITEMS}. Send it in "
            "parts."
        )
    # There may be a million.
    return json_reply(await asyncio.to_thread(_tokens, body, served, ids))


@router.post("/detokenize", openapi_extra=describe(DetokenizeRequest, Text))
async def detokenize_tokens(request: Request) -> Response:
    body = await read_body(request, DetokenizeRequest)
    served = await context_of(request).served(request, body.model)
    for token in body.tokens:
        if not 0 <= token < served.tokenizer.vocab_size:
            raise RequestError(
                f"The vocabulary has {served.tokenizer.vocab_size} tokens and none is {token}.",
                "tokens",
            )
    text = await asyncio.to_thread(served.tokenizer.decode, body.tokens)
    return json_reply(Text(prompt=text, content=text))


def _tokens(body: TokenizeRequest, served: ServedModel, ids: list[int]) -> Tokens:
    text = served.tokenizer.token_text
    return Tokens(
        count=len(ids),
        max_model_len=served.max_model_len,
        tokens=[_piece(served, token) for token in ids] if body.with_pieces else list(ids),
        token_strs=[text(token) for token in ids] if body.return_token_strs else None,
    )


async def _encode(body: TokenizeRequest, served: ServedModel) -> list[int]:
    given = [n for n in ("prompt", "messages", "content") if getattr(body, n) is not None]
    if len(given) != 1:
        raise RequestError("Send one of prompt, messages and content.", "prompt")
    special = body.add_special_tokens
    if body.messages is not None:
        shown = await render_prompt(
            served,
            body.messages,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
            add_special_tokens=bool(special),
        )
        encode = partial(tokenize, served, add_special_tokens=bool(special))
        return (await MediaLoader(served).prompt(shown, body.messages, encode)).ids
    if body.content is not None:
        return await tokenize(
            served,
            body.content,
            add_special_tokens=body.add_special,
            parse_special=body.parse_special,
        )
    return await tokenize(
        served, body.prompt or "", add_special_tokens=True if special is None else special
    )


def _piece(served: ServedModel, token: int) -> Piece:
    """As llama-server: text, or bytes where the token alone is no valid UTF-8."""
    raw = served.tokenizer.token_bytes(token)
    try:
        return Piece(token, raw.decode())
    except UnicodeDecodeError:
        return Piece(token, list(raw))
