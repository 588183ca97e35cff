"""Ollama's /api/chat and /api/generate: names, forms and lines are those of its API."""

import json
import re
import socket
import threading
from typing import Any

import httpx
import pytest

from pagoda.config.server import ServerConfig
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import EOS, REPLY, ByteTokenizer, FakeClient, FimTokenizer, seeded
from tests.server.test_tools import PARIS, ROME, TOOLS
from tests.server.test_tools import REPLY as CALLING
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

USER: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\nassistant: "
TIMES = {
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
    "eval_duration",
}  # fmt: skip
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def chat(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/api/chat", **{"model": "fake", "messages": USER, **body})


def generate(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/api/generate", **{"model": "fake", "prompt": "hi", **body})


def whole(reply: httpx.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.splitlines()]


def error_of(reply: httpx.Response, status: int = 400) -> str:
    assert reply.status_code == status, reply.text
    assert reply.json().keys() == {"error"}, "a string is all that these clients read"
    error: str = reply.json()["error"]
    return error


def prompt_of(server: RunningServer) -> str:
    return bytes(server.client.requests[-1].prompt_token_ids).decode()


def test_chat_streams_unless_told(shared: RunningServer) -> None:
    *lines, last = lines_of(chat(shared))
    assert prompt_of(shared) == PROMPT
    assert all(line["model"] == "fake" and line["done"] is False for line in lines)
    assert all(set(line) == {"model", "created_at", "message", "done"} for line in lines)
    assert all(MOMENT.fullmatch(line["created_at"]) for line in lines)
    assert "".join(line["message"]["content"] for line in lines) == REPLY
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert set(last) == {"model", "created_at", "message", "done", "done_reason"} | TIMES
    assert last["prompt_eval_count"] == len(PROMPT)
    assert last["eval_count"] == len(REPLY.encode()) + 1
    assert all(type(last[name]) is int and last[name] >= 0 for name in TIMES)
    assert last["total_duration"] >= last["eval_duration"] + last["prompt_eval_duration"]


def test_a_whole_reply_is_what_the_lines_add_up_to(shared: RunningServer) -> None:
    reply = whole(chat(shared, stream=False))
    last = lines_of(chat(shared))[-1]
    assert reply["message"] == {"role": "assistant", "content": REPLY}
    assert reply.keys() == last.keys()
    assert (reply["done"], reply["done_reason"]) == (True, "stop")


def test_thought_stands_apart(serve) -> None:
    server = serve("<think>Hmm, 你好.</think>\n\nSunny.")
    message = whole(chat(server, stream=False))["message"]
    assert (message["thinking"], message["content"].strip()) == ("Hmm, 你好.", "Sunny.")
    lines = lines_of(chat(server))
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hmm, 你好."
    assert "".join(line["message"]["content"] for line in lines).strip() == "Sunny."
    reply = whole(generate(server, stream=False))
    assert (reply["thinking"], reply["response"].strip()) == ("Hmm, 你好.", "Sunny.")


def test_calls_come_whole_with_objects(serve) -> None:
    server = serve(CALLING)
    lines = lines_of(chat(server, tools=TOOLS))
    found = [call for line in lines for call in line["message"].get("tool_calls", [])]
    functions = [call["function"] for call in found]
    assert functions == [
        {"index": 0, "name": "weather", "arguments": json.loads(PARIS)},
        {"index": 1, "name": "weather", "arguments": json.loads(ROME)},
    ]
    assert len({call["id"] for call in found}) == 2
    assert lines[-1]["done_reason"] == "stop"
    message = whole(chat(server, tools=TOOLS, stream=False))["message"]
    assert [call["function"] for call in message["tool_calls"]] == functions
    assert message["content"].strip() == "Let me see."


def test_a_call_cut_off_keeps_what_there_is(serve) -> None:
    options = {"num_predict": CALLING.index(PARIS) + 5}
    reply = whole(chat(serve(CALLING), tools=TOOLS, stream=False, options=options))
    (call,) = reply["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"INVALID_JSON": PARIS[:5]}
    assert reply["done_reason"] == "length"


def test_calls_and_results_go_back(serve) -> None:
    server = serve(CALLING)
    call = {"function": {"name": "weather", "arguments": json.loads(PARIS)}}
    history = [
        *USER,
        {"role": "assistant", "content": "", "thinking": "Paris.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    chat(server, messages=history, tools=TOOLS)
    prompt = prompt_of(server)
    assert f'{{"name": "weather", "arguments": {PARIS}}}' in prompt
    assert "<tool_response>\nsunny\n</tool_response>" in prompt


IDS = (
    "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}/{{ c.id }}{% endfor %}"
    "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %} {% endfor %}"
)


def test_results_belong_to_calls_without_ids(start) -> None:
    """Templates that want ids get them: by name, else in order."""
    server = start(FakeClient(), chat_template=ChatTemplate({"default": IDS}, {}))
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("a", "b", "a")]
    results = [{"role": "tool", "tool_name": "b", "content": "1"}, {"role": "tool", "content": "2"},
               {"role": "tool", "tool_name": "a", "content": "3"}]  # fmt: skip
    chat(server, messages=[*USER, {"role": "assistant", "tool_calls": calls}, *results])
    assert prompt_of(server) == (
        "user assistant/call_1_0/call_1_1/call_1_2 tool=call_1_1 tool=call_1_0 tool=call_1_2 "
    )


def test_options_reach_the_engine(shared: RunningServer) -> None:
    options = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repeat_penalty": 1.5,
        "presence_penalty": 1, "frequency_penalty": -1, "seed": 3, "num_predict": 9,
        "stop": ["zzz", ""], "num_ctx": 2048, "num_gpu": 99, "mirostat": 0, "num_keep": 5,
    }  # fmt: skip
    for ask in (chat, generate):
        reply = whole(ask(shared, stream=False, options=options))
        sampling = shared.client.requests[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 7, 0.25)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.125, 1.5)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
        assert (sampling.seed, sampling.max_tokens, sampling.stop) == (3, 9, ["zzz"])
        assert (reply["done_reason"], reply["eval_count"]) == ("length", 9)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"temperature": -1}, "temperature", 0),
        ({"top_k": -1}, "top_k", 0),
        ({"seed": -1}, "seed", None),
        ({"num_predict": -1}, "max_tokens", 2048 - len(PROMPT)),
        ({"num_predict": -2}, "max_tokens", 2048 - len(PROMPT)),
        ({"num_predict": 100_000}, "max_tokens", 2048 - len(PROMPT)),
        ({"repeat_last_n": 0, "repeat_penalty": 1.5}, "repetition_penalty", 1),
        ({"repeat_last_n": 64}, "repetition_penalty", 1),
        ({"stop": "x"}, "stop", ["x"]),
    ],
)
def test_values_of_its_own(
    shared: RunningServer, options: dict[str, Any], name: str, value: Any
) -> None:
    assert chat(shared, options=options).status_code == 200
    assert getattr(shared.client.requests[-1].sampling, name) == value


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"options": {"num_ctx": 4096}}, "context of 2048 tokens"),
        ({"options": {"mirostat": 3}}, "mirostat"),
        ({"options": {"typical_p": 1.7}}, "typical_p"),
        ({"options": {"tfs_z": 0.7}}, "tfs_z"),
        ({"options": {"temperature": "hot"}}, "temperature"),
        ({"options": {"repeat_last_n": 64, "repeat_penalty": 1.5}}, "repeat_last_n"),
        ({"options": []}, "options"),
        ({"format": "yaml"}, "'json' or a JSON schema"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"think": "very"}, "think"),
        ({"top_logprobs": 99, "logprobs": True}, "top_logprobs"),
        ({"model": ""}, "model"),
        ({"messages": [{"content": "hi"}], "prompt": 5}, ""),
    ],
)
def test_what_is_wrong_is_named(shared: RunningServer, body: dict[str, Any], told: str) -> None:
    for ask in (chat, generate):
        assert told in error_of(ask(shared, **body))


def test_images_for_a_model_that_reads_text(shared: RunningServer) -> None:
    message = {"role": "user", "content": "What is it?", "images": ["aGk="]}
    assert "reads text only" in error_of(chat(shared, messages=[message]))
    assert "reads text only" in error_of(generate(shared, images=["aGk="]))


def test_names(shared: RunningServer) -> None:
    for name in ("fake", "fake:latest", "fake-alias", "fake-alias:latest"):
        assert whole(chat(shared, model=name, stream=False))["model"] == name
    for name in ("fake:7b", "other", "other:latest"):
        error = error_of(chat(shared, model=name), 404)
        assert f"model '{name}' not found" in error and "fake-alias" in error


def test_a_prompt_that_is_too_long_says_by_how_much(shared: RunningServer) -> None:
    """Nothing of it is cut without a word."""
    error = error_of(chat(shared, messages=[{"role": "user", "content": "日本語" * 1000}]))
    assert "2048" in error and "tokens" in error
    assert "2048" in error_of(generate(shared, prompt="x" * 50_000))
    assert "2048" in error_of(generate(shared, prompt="x" * 5000, raw=True))


@pytest.mark.parametrize(
    ("think", "told"),
    [(None, ""), (True, "True"), (False, "False"), ("high", "Truehigh"), ("none", "Falsenone")],
)
def test_think_sets_the_template(start, think: Any, told: str) -> None:
    source = "{{ enable_thinking }}{{ reasoning_effort }}|"
    server = start(FakeClient(), chat_template=ChatTemplate({"default": source}, {}))
    for ask in (chat, generate):
        ask(server, think=think)
        assert prompt_of(server) == told + "|"


def test_logprobs(shared: RunningServer) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 2}}
    for ask in (chat, generate):
        reply = whole(ask(shared, stream=False, **fields))
        assert [entry["token"] for entry in reply["logprobs"]] == ["H", "e"]
        assert reply["logprobs"][0] == {
            "token": "H", "logprob": -0.5, "bytes": [72],
            "top_logprobs": [
                {"token": "H", "logprob": -0.5, "bytes": [72]},
                {"token": "I", "logprob": -1.5, "bytes": [73]},
            ],
        }  # fmt: skip
        lines = lines_of(ask(shared, **fields))
        assert [entry for line in lines for entry in line.get("logprobs", [])] == reply["logprobs"]
        assert "logprobs" not in whole(ask(shared, stream=False))


def test_formats_are_enforced(start) -> None:
    server, grammars = start(FakeClient()), ByteGrammars()
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    for body in ({"messages": USER}, {"prompt": "hi"}, {"prompt": "hi", "raw": True}):
        ask = chat if "messages" in body else generate
        for wanted in ("json", schema):
            whole(ask(server, stream=False, format=wanted, **body))
            grammar = server.client.requests[-1].grammar
            assert grammar and grammars.accepts(grammar, '{"age": 22}')
            assert grammars.accepts(grammar, '{"name": "Ä"}') == (wanted == "json")
            assert not grammars.accepts(grammar, "Sunny.")
        whole(ask(server, stream=False, format="", **body))
        assert server.client.requests[-1].grammar is None


def test_generate_streams_unless_told(shared: RunningServer) -> None:
    *lines, last = lines_of(generate(shared, system="Be kind."))
    assert prompt_of(shared) == "system: Be kind.\nuser: hi\nassistant: "
    assert "".join(line["response"] for line in lines) == REPLY
    assert all(set(line) == {"model", "created_at", "response", "done"} for line in lines)
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "stop")
    assert set(last) == {
        "model", "created_at", "response", "done", "done_reason", "context", *TIMES,
    }  # fmt: skip
    reply = whole(generate(shared, system="Be kind.", stream=False))
    assert reply["response"] == REPLY and reply["context"] == last["context"]


CLOSED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_context_goes_on_as_the_chat_would(start) -> None:
    """Token by token what a chat with the whole conversation is, so its prefix is cached."""
    server = start(FakeClient(), chat_template=ChatTemplate({"default": CLOSED}, {}))
    first = whole(generate(server, prompt="a", system="Be kind.", stream=False))
    assert first["context"] == [*prompt_of(server).encode(), *REPLY.encode(), EOS]
    second = whole(generate(server, prompt="b", context=first["context"][:-1], stream=False))
    said = f"<system>Be kind.</>\n<user>a</>\n<assistant>{REPLY}</>\n<user>b</>\n<assistant>"
    assert prompt_of(server) == said
    assert second["prompt_eval_count"] == len(said.encode())
    # The system message was told where the conversation began.
    fields = {"system": "Be kind.", "context": first["context"][:-1], "stream": False}
    whole(generate(server, prompt="b", **fields))
    assert prompt_of(server) == said


class ClosingTokenizer(ByteTokenizer):
    """Its last token is what the template closes a turn with."""

    def token_text(self, token_id: int) -> str:
        return "</>" if token_id == EOS else super().token_text(token_id)


def test_a_context_that_ends_with_the_end_gets_no_second_one(start) -> None:
    template = ChatTemplate({"default": CLOSED}, {})
    server = start(FakeClient(), chat_template=template, tokenizer=ClosingTokenizer())
    context = whole(generate(server, prompt="a", stream=False))["context"]
    assert context[-1] == EOS
    whole(generate(server, prompt="b", context=context, stream=False))
    assert server.client.requests[-1].prompt_token_ids == [
        *context, *b"\n<user>b</>\n<assistant>",
    ]  # fmt: skip


def test_a_context_that_cannot_go_on(start, shared: RunningServer) -> None:
    server = start(FakeClient(), chat_template=ChatTemplate({"default": "{{ 1 }}"}, {}))
    assert "/api/chat" in error_of(generate(server, context=[1, 2]))
    assert "context" in error_of(generate(shared, context=[1, "x"]))
    assert "vocabulary" in error_of(generate(shared, context=[10**6]))
    assert "2048" in error_of(generate(shared, context=[5] * 3000))


def test_raw(shared: RunningServer) -> None:
    reply = whole(generate(shared, prompt="<x>", raw=True, stream=False))
    assert prompt_of(shared) == "<x>"
    assert reply["response"] == REPLY and "context" not in reply
    for field in ({"system": "s"}, {"context": [1]}):
        assert "raw takes" in error_of(generate(shared, raw=True, **field))


def test_suffix_fills_the_middle(start, shared: RunningServer) -> None:
    client = FakeClient(abilities={"vocab_size": 263})
    server = start(client, tokenizer=FimTokenizer())
    reply = whole(generate(server, prompt="a", suffix="b", stream=False))
    assert FimTokenizer().decode(client.requests[-1].prompt_token_ids) == (
        "<bos><|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    )
    assert reply["response"] == REPLY and "context" not in reply
    assert "filling in the middle" in error_of(generate(shared, suffix="b"), 501)


def test_an_empty_request_loads(shared: RunningServer) -> None:
    reply = whole(chat(shared, messages=[]))
    assert reply["message"] == {"role": "assistant", "content": ""}
    assert (reply["done"], reply["done_reason"]) == (True, "load")
    reply = whole(generate(shared, prompt=""))
    assert (reply["response"], reply["done"], reply["done_reason"]) == ("", True, "load")
    error_of(chat(shared, model="other", messages=[]), 404)


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0s", "0m"])
def test_no_time_to_keep_unloads(start, nothing: Any) -> None:
    server = start(FakeClient())
    assert whole(generate(server, prompt="", keep_alive=nothing))["done_reason"] == "unload"
    assert server.context.fleet.models() == [] and server.client.stopped


def test_a_reply_comes_before_its_model_goes(start) -> None:
    server = start(FakeClient())
    assert whole(chat(server, stream=False, keep_alive=0))["message"]["content"] == REPLY
    wait_until(lambda: server.context.fleet.models() == [])


def test_a_model_in_use_stays(start) -> None:
    """Who wants it gone after its reply does not end the replies of others."""
    client = FakeClient(script=lambda r: b"x" * 100 if r.sampling.seed == 1 else b"y", delay=0.01)
    server = start(client)
    found: list[Any] = []
    slow = {"options": {"seed": 1}, "stream": False, "keep_alive": "5m"}
    thread = threading.Thread(target=lambda: found.append(chat(server, **slow)))
    thread.start()
    wait_until(lambda: len(client.running) == 1)
    assert whole(chat(server, stream=False, keep_alive=0))["message"]["content"] == "y"
    thread.join()
    assert whole(found[0])["message"]["content"] == "x" * 100
    assert len(server.context.fleet.models()) == 1


def test_streams_that_overlap_are_their_own(start) -> None:
    server = start(FakeClient(script=seeded, delay=0.001))
    texts: dict[int, str] = {}

    def ask(seed: int) -> None:
        lines = lines_of(generate(server, options={"seed": seed, "temperature": 1}))
        texts[seed] = "".join(line["response"] for line in lines)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request in server.client.requests:
        assert texts[request.sampling.seed or 0] == seeded(request).decode()
    assert len(set(texts.values())) == 8


def test_a_client_that_leaves_frees_its_request(start) -> None:
    server = start(FakeClient(script=lambda request: b"x" * 2000, delay=0.01))
    for stream in (True, False):
        body = json.dumps({"model": "fake", "messages": USER, "stream": stream}).encode()
        with socket.create_connection(server.address) as connection:
            connection.sendall(
                b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            wait_until(lambda: len(server.client.running) == 1)
        wait_until(lambda: not server.client.running)
    assert len(server.client.aborted) == 2 and server.context.metrics.load == 0


def test_a_stream_that_fails_ends_with_an_error(start) -> None:
    server = start(FakeClient(die_after=3))
    lines = lines_of(chat(server))
    assert "killed by a test" in lines[-1]["error"] and lines[-1].keys() == {"error"}
    reply = chat(server)
    assert "killed by a test" in error_of(reply, 503)
    assert int(reply.headers["retry-after"]) > 0


def test_silence_is_filled_with_lines(start) -> None:
    config = ServerConfig(disable_uvicorn_access_log=True, sse_keep_alive_interval=0.1)
    server = start(FakeClient(script=lambda request: b"x", delay=0.5), config)
    for ask, of in ((chat, lambda line: line["message"]["content"]),
                    (generate, lambda line: line["response"])):  # fmt: skip
        lines = lines_of(ask(server))
        assert [of(line) for line in lines].count("") > 1, "beside the last"
        assert "".join(of(line) for line in lines) == "x"
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def test_options_that_nobody_knows_are_named(shared: RunningServer) -> None:
    reply = chat(shared, options={"topp": 0.5}, stream=False)
    assert "topp" in str(reply.headers), reply.headers


def test_keys_are_wanted_in_its_words(start) -> None:
    server = start(FakeClient(), ServerConfig(disable_uvicorn_access_log=True, api_key=("k",)))
    assert "key" in error_of(chat(server), 401)
    with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer k"}) as http:
        assert http.post("/api/chat", json={"model": "fake", "messages": USER}).status_code == 200


def test_other_bodies(shared: RunningServer) -> None:
    assert "JSON" in error_of(shared.http.post("/api/chat", content=b"{", headers=JSON))
    plain = {"Content-Type": "text/plain"}
    reply = shared.http.post("/api/chat", content=b"{}", headers=plain)
    assert "application/json" in error_of(reply)
    error_of(shared.http.get("/api/unheard-of"), 404)
    error_of(shared.http.get("/api/chat"), 405)


JSON = {"Content-Type": "application/json"}
