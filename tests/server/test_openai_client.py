"""The official client, unmodified, against every generating route."""

import openai
import pytest

from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY, FakeClient, seeded

USER = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("user: hi\nassistant: ")


def test_chat(shared: RunningServer) -> None:
    reply = shared.openai().chat.completions.create(model="fake", messages=USER)
    assert reply.id.startswith("chatcmpl-")
    assert reply.object == "chat.completion"
    assert reply.model == "fake"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == REPLY
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == PROMPT_TOKENS
    assert reply.usage.completion_tokens == len(REPLY.encode()) + 1
    assert reply.usage.total_tokens == PROMPT_TOKENS + len(REPLY.encode()) + 1
    assert reply.usage.prompt_tokens_details.cached_tokens == PROMPT_TOKENS // 2
    assert reply.system_fingerprint.startswith("pagoda-")


def test_chat_stream(shared: RunningServer) -> None:
    stream = shared.openai().chat.completions.create(
        model="fake", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == REPLY
    finals = [c for c in chunks if c.choices and c.choices[0].finish_reason]
    assert [c.choices[0].finish_reason for c in finals] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(REPLY.encode()) + 1
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_stream_without_usage_ends_with_the_finish_reason(shared: RunningServer) -> None:
    stream = shared.openai().chat.completions.create(model="fake", messages=USER, stream=True)
    assert list(stream)[-1].choices[0].finish_reason == "stop"


def test_continuous_usage(shared: RunningServer) -> None:
    stream = shared.openai().chat.completions.create(
        model="fake", messages=USER, stream=True, max_tokens=5,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts) and counts[-1] == 5


def test_chat_n(shared: RunningServer) -> None:
    reply = shared.openai().chat.completions.create(model="fake", messages=USER, n=2)
    assert [c.index for c in reply.choices] == [0, 1]
    assert [c.message.content for c in reply.choices] == [REPLY, REPLY]
    # The prompt is shared: counted once.
    assert reply.usage.prompt_tokens == PROMPT_TOKENS
    assert reply.usage.completion_tokens == 2 * (len(REPLY.encode()) + 1)
    assert reply.usage.prompt_tokens_details.cached_tokens == PROMPT_TOKENS // 2


def test_chat_n_streamed(shared: RunningServer) -> None:
    stream = shared.openai().chat.completions.create(model="fake", messages=USER, n=3, stream=True)
    texts = {0: "", 1: "", 2: ""}
    roles = []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
    assert texts == {0: REPLY, 1: REPLY, 2: REPLY}
    assert sorted(roles) == [0, 1, 2]


def test_stop_string(shared: RunningServer) -> None:
    reply = shared.openai().chat.completions.create(model="fake", messages=USER, stop=["counts"])
    assert reply.choices[0].message.content == REPLY.partition("counts")[0]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].stop_reason == "counts"


def test_stop_string_aborts_the_engine_request(start) -> None:
    client = FakeClient()
    server = start(client)
    server.openai().chat.completions.create(model="fake", messages=USER, stop="Hell")
    assert client.aborted == [client.requests[0].req_id]
    assert not client.running


def test_max_tokens(shared: RunningServer) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        reply = shared.openai().chat.completions.create(model="fake", messages=USER, **{name: 5})
        assert reply.choices[0].message.content == "Hello"
        assert reply.choices[0].finish_reason == "length"


def test_seed(start) -> None:
    server = start(FakeClient(script=seeded))

    def text(**options: object) -> str:
        reply = server.openai().chat.completions.create(model="fake", messages=USER, **options)
        return reply.choices[0].message.content

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text(temperature=0) == "greedy"
    several = server.openai().chat.completions.create(model="fake", messages=USER, seed=1, n=2)
    assert several.choices[0].message.content != several.choices[1].message.content


def test_chat_logprobs(shared: RunningServer) -> None:
    reply = shared.openai().chat.completions.create(
        model="fake", messages=USER, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["H", "e", "l"]
    assert content[0].bytes == [ord("H")]
    assert content[0].logprob == -0.5
    assert [top.token for top in content[0].top_logprobs] == ["H", "I"]
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -1.5]


def test_chat_logprobs_without_alternatives(shared: RunningServer) -> None:
    reply = shared.openai().chat.completions.create(
        model="fake", messages=USER, max_tokens=3, logprobs=True
    )
    assert [entry.top_logprobs for entry in reply.choices[0].logprobs.content] == [[], [], []]


def test_streamed_logprobs_cover_every_token(shared: RunningServer) -> None:
    stream = shared.openai().chat.completions.create(
        model="fake", messages=USER, logprobs=True, top_logprobs=1, stream=True
    )
    tokens = [
        byte
        for chunk in stream
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content
        for byte in entry.bytes
    ]
    assert bytes(tokens).decode() == REPLY


def test_completion(shared: RunningServer) -> None:
    reply = shared.openai().completions.create(model="fake", prompt="abc")
    assert reply.id.startswith("cmpl-")
    assert reply.object == "text_completion"
    assert reply.choices[0].text == REPLY.encode()[:16].decode()
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.prompt_tokens == 3
    assert reply.usage.completion_tokens == 16


def test_completion_stream(shared: RunningServer) -> None:
    stream = shared.openai().completions.create(
        model="fake", prompt="abc", max_tokens=500, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks[:-1]) == REPLY
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens == 3


def test_completion_prompts_in_every_form(shared: RunningServer) -> None:
    create = shared.openai().completions.create
    assert create(model="fake", prompt=[97, 98]).usage.prompt_tokens == 2
    for prompt in (["a", "bcd"], [[97], [98, 99, 100]]):
        reply = create(model="fake", prompt=prompt, n=2, max_tokens=2)
        assert [c.index for c in reply.choices] == [0, 1, 2, 3]
        assert reply.usage.prompt_tokens == 4


def test_completion_logprobs(shared: RunningServer) -> None:
    reply = shared.openai().completions.create(model="fake", prompt="abc", max_tokens=2, logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs.tokens == ["H", "e"]
    assert logprobs.text_offset == [0, 1]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs[0] == {"H": -0.5, "I": -1.5}


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt(shared: RunningServer, stream: bool) -> None:
    reply = shared.openai().completions.create(
        model="fake", prompt="abc", echo=True, max_tokens=0, logprobs=1, stream=stream
    )
    last = list(reply)[-1] if stream else reply
    choice = last.choices[0]
    assert choice.text == "abc"
    assert choice.finish_reason == "length"
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5]
    assert choice.logprobs.top_logprobs[:2] == [None, {"b": -0.5}]
    if not stream:
        assert reply.usage.completion_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_echo_before_the_completion(shared: RunningServer, stream: bool) -> None:
    reply = shared.openai().completions.create(
        model="fake", prompt=["abc", "xyz"], echo=True, max_tokens=2, logprobs=0, stream=stream
    )
    texts, tokens = {0: "", 1: ""}, {0: [], 1: []}
    for part in reply if stream else [reply]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
    assert texts == {0: "abcHe", 1: "xyzHe"}
    assert tokens == {0: list("abcHe"), 1: list("xyzHe")}


def test_models(shared: RunningServer) -> None:
    cards = shared.openai().models.list().data
    assert [card.id for card in cards] == ["fake", "fake-alias"]
    assert cards[0].max_model_len == 2048
    assert cards[0].permission[0]["allow_sampling"] is True
    assert shared.openai().models.retrieve("fake-alias").id == "fake-alias"
    with pytest.raises(openai.NotFoundError):
        shared.openai().models.retrieve("other")


def test_alias_answers(shared: RunningServer) -> None:
    reply = shared.openai().chat.completions.create(model="fake-alias", messages=USER)
    assert reply.model == "fake-alias"


def test_reasoning_under_both_names(start) -> None:
    server = start(FakeClient(script=lambda request: b"<deep thought|42"))
    reply = server.openai().chat.completions.create(model="fake", messages=USER)
    message = reply.choices[0].message
    assert message.content == "42"
    assert message.reasoning == message.reasoning_content == "deep thought"
    assert reply.usage.completion_tokens_details.reasoning_tokens == len("deep thought")
    stream = server.openai().chat.completions.create(model="fake", messages=USER, stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(getattr(delta, name, None) or "" for delta in deltas) == "deep thought"
    assert "".join(delta.content or "" for delta in deltas) == "42"


def test_reasoning_can_be_left_out(start) -> None:
    server = start(FakeClient(script=lambda request: b"<deep thought|42"))
    reply = server.chat(include_reasoning=False).json()
    assert reply["choices"][0]["message"]["reasoning"] is None
    assert "reasoning_content" not in reply["choices"][0]["message"]
