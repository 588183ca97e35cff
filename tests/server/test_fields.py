"""Fields that reach the engine or come back: sampling, ids, templates, tokens."""

import json
from typing import Any

import pytest

from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY, FakeClient
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

CHAT_KEYS = {
    "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
    "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "metrics",
    "timings",
}  # fmt: skip


def test_every_key_of_a_chat_reply(shared: RunningServer) -> None:
    reply = shared.chat().json()
    assert set(reply) == CHAT_KEYS
    assert set(reply["choices"][0]) == {
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "routed_experts",
    }  # fmt: skip
    assert set(reply["choices"][0]["message"]) == {
        "role", "content", "refusal", "annotations", "audio", "function_call", "reasoning",
    }  # fmt: skip
    assert set(reply["usage"]) == {
        "prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details",
    }  # fmt: skip


def test_every_key_of_a_completion(shared: RunningServer) -> None:
    choice = shared.post("/v1/completions", prompt="a").json()["choices"][0]
    assert set(choice) == {
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "prompt_logprobs", "prompt_token_ids", "routed_experts",
    }  # fmt: skip


def test_sampling_reaches_the_engine(start) -> None:
    client = FakeClient()
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "presence_penalty": 1,
        "frequency_penalty": -1, "repetition_penalty": 1.5, "seed": 3, "min_tokens": 2,
        "stop": ["zzz"], "stop_token_ids": [9], "bad_words": ["bad"], "ignore_eos": True,
        "include_stop_str_in_output": True, "allowed_token_ids": [1, 2],
        "skip_special_tokens": False, "max_tokens": 50,
    }  # fmt: skip
    assert (
        start(client)
        .chat(
            **fields, logit_bias={"5": -500, "6": 1}, priority=4, cache_salt="salt", logprobs=True
        )
        .status_code
        == 200
    )
    request = client.requests[0]
    for name, value in fields.items():
        assert getattr(request.sampling, name) == value, name
    assert request.sampling.logit_bias == {5: -100, 6: 1}
    assert request.sampling.logprobs == 0
    assert (request.priority, request.cache_salt) == (4, "salt")


def test_defaults(start) -> None:
    """Request over the model's generation config over OpenAI's own."""
    client = FakeClient()
    server = start(client, defaults={"temperature": 0.25, "top_k": 20})
    server.chat()
    server.chat(temperature=0.75)
    first, second = (request.sampling for request in client.requests)
    assert (first.temperature, first.top_k, first.top_p) == (0.25, 20, 1.0)
    assert (second.temperature, second.top_k) == (0.75, 20)


def test_default_lengths(start) -> None:
    client = FakeClient()
    server = start(client)
    server.chat()
    server.post("/v1/completions", prompt="abc")
    chat, completion = client.requests
    assert chat.sampling.max_tokens == 2048 - len(chat.prompt_token_ids)
    assert completion.sampling.max_tokens == 16


def test_default_lengths_of_the_model_never_ask_too_much(start) -> None:
    client = FakeClient()
    server = start(client, defaults={"max_tokens": 1500})
    assert server.chat().status_code == 200
    assert server.post("/v1/completions", prompt="x" * 2000).status_code == 200
    assert server.post("/v1/completions", prompt="x" * 2000, max_tokens=1500).status_code == 400
    assert [request.sampling.max_tokens for request in client.requests] == [1500, 48]


def test_token_ids_come_back(shared: RunningServer) -> None:
    reply = shared.chat(return_token_ids=True, return_prompt_text=True, max_tokens=2).json()
    assert reply["prompt_text"] == "user: hi\nassistant: "
    assert bytes(reply["prompt_token_ids"]).decode() == "user: hi\nassistant: "
    assert bytes(reply["choices"][0]["token_ids"]) == b"He"
    choice = shared.post(
        "/v1/completions", prompt="abc", return_token_ids=True, max_tokens=2
    ).json()["choices"][0]
    assert choice["prompt_token_ids"] == [97, 98, 99]
    assert bytes(choice["token_ids"]) == b"He"


def test_verbose_shows_the_prompt_as_llama_server_does(shared: RunningServer) -> None:
    assert shared.chat(verbose=True, max_tokens=2).json()["__verbose"] == {
        "prompt": "user: hi\nassistant: "
    }
    streamed = shared.chat(verbose=True, stream=True, max_tokens=2).text
    first, rest = streamed.split("\n\n", 1)
    assert json.loads(first.removeprefix("data: "))["__verbose"]["prompt"].startswith("user: hi")
    assert "__verbose" not in rest
    assert "__verbose" not in shared.chat(max_tokens=2).json()


def test_tokens_as_token_ids(shared: RunningServer) -> None:
    reply = shared.chat(logprobs=True, return_tokens_as_token_ids=True, max_tokens=1).json()
    assert reply["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"


def test_prompt_logprobs(shared: RunningServer) -> None:
    reply = shared.chat(prompt_logprobs=1, max_tokens=1).json()
    assert reply["prompt_logprobs"][:2] == [
        None, {"115": {"logprob": -0.5, "rank": 1, "decoded_token": "s"}},
    ]  # fmt: skip
    choice = shared.post("/v1/completions", prompt="ab", prompt_logprobs=2).json()["choices"][0]
    assert set(choice["prompt_logprobs"][1]) == {"98", "99"}


def test_request_ids(shared: RunningServer) -> None:
    reply = shared.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "mine"}
    )
    assert reply.json()["id"] == "cmpl-mine"
    assert reply.headers["x-request-id"] == "mine"
    assert shared.chat(request_id="yours").json()["id"] == "chatcmpl-yours"
    hostile = shared.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "a b\tc"}
    )
    assert "a b" not in hostile.json()["id"]


def test_one_id_twice_at_once_is_no_conflict(shared: RunningServer) -> None:
    before = len(shared.client.requests)
    for _ in range(2):
        assert shared.chat(request_id="same").status_code == 200
    first, second = shared.client.requests[before:]
    assert first.req_id != second.req_id


def test_template_input(start) -> None:
    source = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.reasoning_content }}"
        "{% for call in m.tool_calls %}{{ call.function.arguments.a }}{% endfor %}|{% endfor %}"
        "{{ tools[0].function.name }}|{{ documents[0].title }}|{{ reasoning_effort }}"
        "|{{ enable_thinking }}|{{ custom }}"
    )
    server = start(FakeClient(), chat_template=ChatTemplate({"default": source}, {}))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    reply = server.chat(
        messages=[
            {"role": "user", "content": ["a", {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
        ],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        documents=[{"title": "t"}],
        reasoning_effort="none",
        chat_template_kwargs={"custom": 7},
        return_prompt_text=True,
    )
    assert reply.json()["prompt_text"] == ("user:a\nb|assistant:hm1|tool:x|f|t|none|False|7")


def test_continue_final_message_with_echo(shared: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    options = {
        "messages": messages, "add_generation_prompt": False, "continue_final_message": True,
        "echo": True, "return_prompt_text": True,
    }  # fmt: skip
    reply = shared.chat(**options).json()
    assert reply["prompt_text"].endswith("assistant: Well, ")
    assert reply["choices"][0]["message"]["content"] == "Well, " + REPLY


def test_tokenize(shared: RunningServer) -> None:
    assert shared.post("/tokenize", prompt="añ").json() == {
        "count": 3, "max_model_len": 2048, "tokens": [97, 195, 177], "token_strs": None,
    }  # fmt: skip
    strings = shared.post("/tokenize", prompt="ab", return_token_strs=True).json()["token_strs"]
    assert strings == ["a", "b"]
    chat = shared.post("/tokenize", messages=[{"role": "user", "content": "hi"}]).json()
    assert bytes(chat["tokens"]).decode() == "user: hi\nassistant: "


def test_tokenize_in_llama_servers_words(shared: RunningServer) -> None:
    assert shared.post("/tokenize", content="ab").json()["tokens"] == [97, 98]
    pieces = shared.post("/tokenize", content="añ", with_pieces=True).json()["tokens"]
    assert pieces == [
        {"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 177, "piece": [177]},
    ]  # fmt: skip


def test_tokenize_wants_one_input(shared: RunningServer) -> None:
    assert shared.post("/tokenize").status_code == 400
    assert shared.post("/tokenize", prompt="a", content="b").status_code == 400


def test_detokenize(shared: RunningServer) -> None:
    reply = shared.post("/detokenize", tokens=[97, 195, 177]).json()
    assert reply == {"prompt": "añ", "content": "añ"}
    assert shared.post("/detokenize", tokens=[]).json()["content"] == ""
    assert shared.post("/detokenize", tokens=[-5]).status_code == 400


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": {"type": "object", "properties": {"n": {"const": 1}}}},
        {"type": "json_schema", "schema": {"type": "object", "properties": {"n": {"const": 1}}}},
    ],
    ids=lambda form: form["type"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_schema_beside_the_type_is_enforced(
    shared: RunningServer, form: dict[str, Any], path: str
) -> None:
    said = {"messages": [{"role": "user", "content": "hi"}]}
    asked: dict[str, Any] = said if "chat" in path else {"prompt": "hi"}
    assert shared.post(path, **asked, response_format=form).status_code == 200
    grammar = shared.client.requests[-1].grammar or ""
    assert ByteGrammars().accepts(grammar, '{"n": 1}')
    for text in ('{"n": 2}', '{"n": 1, "m": 2}'):
        assert not ByteGrammars().accepts(grammar, text)
    assert shared.post(path, **asked, response_format={"type": "json_object"}).status_code == 200
    assert ByteGrammars().accepts(shared.client.requests[-1].grammar or "", '{"n": 2}')


@pytest.mark.parametrize(
    ("fields", "end"),
    [({"reasoning_effort": "none"}, "<think>\n</think>"),
     ({"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n</think>"),
     ({"chat_template_kwargs": {"enable_thinking": True}}, "<think>\n"),
     ({}, "<think>\n")],
)  # fmt: skip
def test_a_thought_that_only_the_template_wants_is_closed(start, fields, end) -> None:
    """As that of DeepSeek R1, which has no switch."""
    source = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
    )
    template, parser = ChatTemplate({"default": source}, {}), parser_for(source)
    client = FakeClient(script=lambda request: b"Four.")
    server = start(client, chat_template=template, parser=parser)
    reply = server.chat(return_prompt_text=True, **fields).json()
    assert reply["prompt_text"].endswith(f"<|Assistant|>{end}")
    message = reply["choices"][0]["message"]
    thinks = not end.endswith("</think>")
    assert message["reasoning" if thinks else "content"] == "Four."
    assert not message["content" if thinks else "reasoning"]


def test_a_default_of_no_thought_closes_it_too(start) -> None:
    source = "{{ messages[0].content }}<think>\n{# </think> #}"
    template = ChatTemplate({"default": source}, {}, variables={"enable_thinking": False})
    server = start(FakeClient(), chat_template=template, parser=parser_for(source))
    assert server.chat(return_prompt_text=True).json()["prompt_text"].endswith("</think>")
