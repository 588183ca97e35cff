"""A whole reply is what its stream adds up to, in every dialect, however the engine's output was
cut: with the official clients' accumulators where there are some."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from pagoda.config.server import ServerConfig
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app
from pagoda.text.parsers.select import parser_for
from tests.server.fakes import EOS, FakeClient, entry, served_model
from tests.unit.text.parsers.parsing import TOOLS

MESSAGES = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
PIECES = {
    "hermes": [
        "<think>", "</think>", CALL, '<tool_call>{"name": "weather", "arguments": {"ci',
        "<tool_call>", "<tool",
    ],
    "harmony": [
        "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.now<|message|>{}<|call|>",
    ],
    "mistral": ["[THINK]", "[/THINK]", '[TOOL_CALLS]now[ARGS]{"a": 1}', "[TOOL_", "CALLS]"],
    "none": [],
}  # fmt: skip
TEXTS = ["Wörld", "你好", "🙂", "\n  x\ny", "a\n", " ", "END", "EN", "one two"]
USAGE = {"stream_options": {"include_usage": True}}

Pair = tuple[Any, Any]
"""A whole reply, and what its stream adds up to."""


@dataclass
class Written:
    """What the engine writes for one choice, and where its deltas are cut."""

    text: str
    cuts: list[int]
    reason: str


@dataclass
class Scene:
    family: str
    choices: list[Written]
    logprobs: bool
    stops: list[str]
    told: dict[str, Any]
    """Fields of OpenAI's bodies that change what the chunks tell."""

    def fields(self, without: str) -> dict[str, Any]:
        told = {name: value for name, value in self.told.items() if name != without}
        return {"model": "fake", "stop": self.stops, "n": len(self.choices), **told}


class CutClient(FakeClient):
    """Writes the choices of a scene."""

    scene: Scene
    served = 0

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        written = self.scene.choices[self.served % len(self.scene.choices)]
        self.served += 1
        tokens = [*written.text.encode(), *([EOS] if written.reason == "stop" else [])]
        places = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in written.cuts)})
        count = request.sampling.logprobs
        deltas = [RequestDelta(req_id=request.req_id, num_cached_tokens=1, queue_seconds=0.0)]
        for start, end in zip(places, places[1:], strict=False):
            delta = RequestDelta(req_id=request.req_id, token_ids=tokens[start:end])
            if count is not None:
                delta.logprobs = [entry(token, count) for token in tokens[start:end]]
            deltas.append(delta)
        deltas[-1].finish_reason = written.reason
        return deltas


class Servers:
    """One for each family of models."""

    def __init__(self) -> None:
        self.client = CutClient()
        config = ServerConfig(disable_uvicorn_access_log=True)
        self.apps = {
            name: create_app(
                Fleet.of([served_model(self.client, parser=parser_for(None, name, name))]), config
            )
            for name in PIECES
        }

    def play(self, dialect: str, scene: Scene) -> Pair:
        async def played() -> Pair:
            self.client.scene, self.client.served = scene, 0
            return await DIALECTS[dialect](Door(self.apps[scene.family]), scene)

        return asyncio.run(played())


@pytest.fixture(scope="module")
def servers() -> Servers:
    return Servers()


class Door:
    """The clients of one application."""

    def __init__(self, app: Any):
        transport = httpx2.ASGITransport(app=app)
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
        self.anthropic = anthropic.AsyncAnthropic(
            base_url="http://localhost", api_key="dummy", max_retries=0, http_client=self.http
        )

    async def both(self, path: str, body: dict[str, Any], **streamed: Any) -> tuple[Any, list[Any]]:
        """The whole reply, and the chunks of the stream."""
        replies = [
            await self.http.post(path, json={**body, **more})
            for more in ({}, {"stream": True, **streamed})
        ]
        assert [reply.status_code for reply in replies] == [200, 200], replies[0].text
        lines = [line[6:] for line in replies[1].text.splitlines() if line.startswith("data: ")]
        return replies[0].json(), [json.loads(line) for line in lines if line != "[DONE]"]


async def chat(door: Door, scene: Scene) -> Pair:
    body = {"messages": MESSAGES, "tools": TOOLS, **scene.fields(without="echo")}
    if scene.logprobs:
        body |= {"logprobs": True, "top_logprobs": 2}
    whole, chunks = await door.both("/v1/chat/completions", body, **USAGE)
    state: Any = ChatCompletionStreamState()
    # Fields that are not OpenAI's get lost in it.
    token_ids: dict[int, list[int]] = {}
    stops: dict[int, Any] = {}
    # openai's accumulator takes a choice that is new only behind those before it.
    for chunk in sorted(chunks[:-1], key=lambda chunk: int(chunk["choices"][0]["index"])):
        for choice in chunk["choices"]:
            token_ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
            stops[choice["index"]] = choice.get("stop_reason")
        state.handle_chunk(ChatCompletionChunk.construct(**chunk))
    folded = state.current_completion_snapshot.model_dump()
    for choice in folded["choices"]:
        choice["token_ids"] = token_ids[choice["index"]]
        choice["stop_reason"] = stops[choice["index"]]
    return _chat(whole), _chat({**folded, "usage": chunks[-1]["usage"]})


def _chat(reply: dict[str, Any]) -> tuple[Any, ...]:
    """What both forms say."""
    return reply["usage"], [
        (
            choice["index"],
            choice["message"]["content"] or "",
            choice["message"].get("reasoning") or "",
            [
                (call["function"]["name"], call["function"]["arguments"])
                for call in choice["message"].get("tool_calls") or ()
            ],
            [
                (each["token"], each["logprob"], len(each["top_logprobs"]))
                for each in (choice["logprobs"] or {}).get("content", ())
            ],
            choice["finish_reason"],
            choice.get("stop_reason"),
            choice.get("token_ids") or [],
        )
        for choice in sorted(reply["choices"], key=lambda choice: int(choice["index"]))
    ]


async def completions(door: Door, scene: Scene) -> Pair:
    body = {"prompt": "Hi.", "max_tokens": 2000, **scene.fields(without="parallel_tool_calls")}
    if scene.logprobs:
        body["logprobs"] = 2
    return _added(*await door.both("/v1/completions", body, **USAGE))


async def generate(door: Door, scene: Scene) -> Pair:
    sampling: dict[str, Any] = {"n": len(scene.choices), "stop": scene.stops, "max_tokens": 2000}
    if scene.logprobs:
        sampling["logprobs"] = 2
    body = {"token_ids": [72, 105], "output_mode": "text", "sampling_params": sampling}
    return _added(*await door.both("/inference/v1/generate", body, **USAGE))


def _added(whole: dict[str, Any], chunks: list[dict[str, Any]]) -> Pair:
    """Texts and lists are added up; what came last holds of all else."""
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for chunk in chunks for part in chunk["choices"]):
        choice = choices.setdefault(part["index"], {})
        for name, value in part.items():
            choice[name] = _sum(choice.get(name), value)
    for choice in whole["choices"]:
        for name in ("prompt_logprobs", "routed_experts"):
            choice.pop(name, None)
        for name in ("token_ids", "prompt_token_ids"):
            if choice.get(name, 0) is None:
                del choice[name]
    usage, folded = chunks[-1]["usage"], [choices[index] for index in sorted(choices)]
    return (whole["usage"], whole["choices"]), (usage, folded)


def _sum(earlier: Any, later: Any) -> Any:
    if earlier is None or later is None:
        return earlier if later is None else later
    if isinstance(later, dict):
        return {name: _sum(earlier[name], value) for name, value in later.items()}
    return earlier + later if isinstance(later, str | list) else later


async def native(door: Door, scene: Scene) -> Pair:
    body = {
        "prompt": "Hi.", "n_cmpl": len(scene.choices), "stop": scene.stops,
        "return_tokens": True, "n_probs": 2 if scene.logprobs else 0,
    }  # fmt: skip
    whole, chunks = await door.both("/completion", body)
    folded: dict[int, dict[str, Any]] = {}
    told = ("content", "tokens", "completion_probabilities")
    for chunk in chunks:
        choice = folded.setdefault(chunk["index"], {})
        for name in told if not chunk["stop"] else chunk:
            choice[name] = _sum(choice.get(name), chunk.get(name))
    wholes = whole if isinstance(whole, list) else [whole]
    for reply in (*wholes, *folded.values()):
        del reply["timings"], reply["generation_settings"]["stream"]
        reply["completion_probabilities"] = reply.get("completion_probabilities") or []
    return wholes, [folded[index] for index in sorted(folded)]


async def messages(door: Door, scene: Scene) -> Pair:
    body: dict[str, Any] = {
        "model": "fake", "messages": MESSAGES, "max_tokens": 1000, "stop_sequences": scene.stops,
        "tools": [
            {"name": tool["function"]["name"], "input_schema": {"type": "object"}} for tool in TOOLS
        ],
    }  # fmt: skip
    whole = await door.anthropic.messages.create(**body)
    async with door.anthropic.messages.stream(**body) as stream:
        folded = await stream.get_final_message()

    def told(message: Any) -> tuple[Any, ...]:
        fields: dict[str, Any] = message.model_dump(exclude_unset=True)
        for block in fields["content"]:
            for name in ("id", "parsed_output"):
                block.pop(name, None)
        return tuple(fields[name] for name in ("content", "stop_reason", "stop_sequence", "usage"))

    return told(whole), told(folded)


async def responses(door: Door, scene: Scene) -> Pair:
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
    body: dict[str, Any] = {"model": "fake", "input": "hi", "tools": tools, "store": False}
    if scene.logprobs:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, events = await door.both("/v1/responses", body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            output.append({**event["item"], "text": "", "logprobs": []})
        elif event["type"].endswith(".delta"):
            output[-1]["text"] += event["delta"]
            output[-1]["logprobs"] += event.get("logprobs") or []

    def told(response: dict[str, Any]) -> list[Any]:
        return [response["status"], response["usage"], *map(item_told, response["output"])]

    def item_told(item: dict[str, Any]) -> tuple[Any, ...]:
        content = (item.get("content") or [{}])[0]
        text = item.get("arguments", "") + content.get("text", "")
        return item["type"], item.get("name"), text, content.get("logprobs") or []

    last = events[-1]["response"]
    assert told(last) == told(whole)
    folded = [(item["type"], item.get("name"), item["text"], item["logprobs"]) for item in output]
    return told(whole), [last["status"], last["usage"], *folded]


DIALECTS: dict[str, Callable[[Door, Scene], Awaitable[Pair]]] = {
    each.__name__: each for each in (chat, completions, generate, native, messages, responses)
}
CUTS = st.lists(st.integers(0, 500), max_size=30)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    family = draw(st.sampled_from(list(PIECES)))
    pieces = st.lists(st.sampled_from([*TEXTS, *PIECES[family]]), max_size=8).map("".join)
    reasons = st.sampled_from(["stop", "stop", "length", "abort"])
    written = st.builds(Written, pieces, CUTS, reasons)
    told: list[dict[str, Any]] = [
        {}, {"return_token_ids": True}, {"echo": True}, {"timings_per_token": True},
        {"parallel_tool_calls": False},
    ]  # fmt: skip
    return Scene(
        family,
        draw(st.lists(written, min_size=1, max_size=3)),
        draw(st.booleans()),
        draw(st.sampled_from([[], [], ["END"]])),
        draw(st.sampled_from(told)),
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(deadline=None, max_examples=25)
@given(scene=scenes(), cuts=CUTS)
def test_a_stream_adds_up_to_the_whole_reply(servers, dialect, scene, cuts):
    if dialect in ("messages", "responses"):
        del scene.choices[1:]
    if dialect == "messages":  # anthropic's accumulator raises where a call's JSON is broken
        scene.choices[0].text = scene.choices[0].text.replace('{"ci', "{}")
    whole, folded = servers.play(dialect, scene)
    assert folded == whole
    for written in scene.choices:
        written.cuts = cuts
    again, _ = servers.play(dialect, scene)
    assert again == whole, "the reply depends on how the engine's output was cut"
