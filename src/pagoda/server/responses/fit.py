"""`truncation: "auto"`: a conversation that is too long loses its oldest turns."""

from functools import partial

from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import tokenize
from pagoda.server.media import MediaLoader
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.replies.chat_job import render_chat


async def drop_oldest(chat: ChatCompletionRequest, served: ServedModel, media: MediaLoader) -> None:
    """Leave out whole turns, each from a user's message to the next one's, but never the system
    message or the last turn. In place."""
    # Half of the context at most is kept free for an answer.
    room = served.max_model_len - min(chat.max_completion_tokens or 1, served.max_model_len // 2)
    messages = chat.messages
    first = 1 if messages[0].role == "system" else 0
    turns = [i for i, message in enumerate(messages) if i > first and message.role == "user"]
    # The fewest turns whose absence suffices; the more are left out, the shorter it is.
    low, high = 0, len(turns)
    while low < high:
        middle = (low + high) // 2
        if await _fits(_without(chat, first, turns, middle), served, room, media):
            high = middle
        else:
            low = middle + 1
    chat.messages = _without(chat, first, turns, low).messages


def _without(
    chat: ChatCompletionRequest, first: int, turns: list[int], count: int
) -> ChatCompletionRequest:
    start = turns[count - 1] if count else first
    kept = [*chat.messages[:first], *chat.messages[start:]]
    return chat.model_copy(update={"messages": kept})


async def _fits(
    chat: ChatCompletionRequest, served: ServedModel, room: int, media: MediaLoader
) -> bool:
    shown = await render_chat(chat, served)
    encode = partial(tokenize, served, add_special_tokens=False)
    return len((await media.prompt(shown, chat.messages, encode)).ids) <= room
