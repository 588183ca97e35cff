import json

import pytest

from pagoda.server.protocol.replies import ChatChunkChoice, ChatCompletionChunk, ChatDelta
from pagoda.server.replies.sse import TextEvent, data_event

TEXTS = ["", " word", '"quoted" \\ and\nlines', "tab\t\x00\x1f", "日本 🏯", TextEvent._MARK]


def chunk(text: str) -> ChatCompletionChunk:
    # Clients choose the model's name; it may hold anything.
    model = f"m{TextEvent._MARK}"
    choice = ChatChunkChoice(index=1, delta=ChatDelta(content=text))
    return ChatCompletionChunk(id="chatcmpl-1", created=7, model=model, choices=[choice])


@pytest.mark.parametrize("text", TEXTS)
def test_an_event_of_a_text_is_that_of_its_chunk(text):
    made = TextEvent(chunk).of(text)
    assert made == data_event(chunk(text))
    found = json.loads(made.removeprefix(b"data: "))
    assert found["choices"][0]["delta"] == {"content": text}
