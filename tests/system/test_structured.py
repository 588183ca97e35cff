"""Structured output of the default model through the official client."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pydantic
import pytest

from pagoda import LLM, SamplingParams, StructuredOutputsParams
from tests.system.harness import Served


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    country: str = pydantic.Field(max_length=30)
    size: Literal["small", "large"]
    districts: list[str] = pydantic.Field(max_length=3)


ASK = [{"role": "user", "content": "Describe Paris as JSON."}]
TIGHT = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 10}},
         "required": ["n"], "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def model(server: Served) -> str:
    return server.openai().models.list().data[0].id


def chat(server: Served, **fields):
    fields = {"model": "", "messages": ASK, "max_tokens": 300, **fields}
    return server.openai().chat.completions.create(**fields)


def test_a_schema_by_the_clients_own_parser(server, model):
    reply = server.openai().chat.completions.parse(
        model=model, messages=ASK, response_format=Town, max_tokens=400, temperature=0
    )
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(reply.choices[0].message.parsed, Town)


def test_streams_are_held_to_it_too(server):
    chunks = chat(
        server,
        stream=True,
        temperature=1,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": TIGHT}},
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert 10 <= json.loads(text)["n"] <= 99


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"choice": ["Lyon", "Paris"]}, lambda text: text in ("Lyon", "Paris")),
        ({"regex": r"[A-Z]{3}-\d{4}"}, lambda text: len(text) == 8 and text[3] == "-"),
        ({"grammar": 'root ::= "<" [a-c]+ ">"'}, lambda text: set(text[1:-1]) <= set("abc")),
        ({"json_object": True, "disable_any_whitespace": True}, None),
    ],
    ids=["choice", "regex", "grammar", "json object"],
)
def test_other_kinds_on_both_routes(server, model, wanted, fits):
    options = {"extra_body": {"structured_outputs": wanted}, "max_tokens": 60, "temperature": 1}
    written = [
        chat(server, **options).choices[0],
        server.openai().completions.create(model=model, prompt="Say:", **options).choices[0],
    ]
    for choice in written:
        text = choice.message.content if hasattr(choice, "message") else choice.text
        if choice.finish_reason == "stop":
            json.loads(text) if fits is None else None
            assert fits is None or fits(text)
        else:
            assert choice.finish_reason == "length"


def test_many_at_once_beside_free_ones(server):
    def one(number: int) -> str:
        kind = {"type": "json_schema", "json_schema": {"name": "n", "schema": TIGHT}}
        fields = {"response_format": kind} if number % 2 else {}
        return chat(server, max_tokens=40, seed=number, **fields).choices[0].message.content

    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(one, range(12)))
    assert all(10 <= json.loads(reply)["n"] <= 99 for reply in replies[1::2])


def test_the_offline_engine(smollm2_gguf: Path):
    llm = LLM(str(smollm2_gguf), max_model_len=512)
    wanted = StructuredOutputsParams(choice=["positive", "negative"])
    sampling = SamplingParams(max_tokens=10, structured_outputs=wanted)
    (generated,) = llm.generate(["The film was a joy. Sentiment:"], sampling, use_tqdm=False)
    (chatted,) = llm.chat(ASK, sampling, use_tqdm=False)
    for output in (generated, chatted):
        assert output.outputs[0].text in ("positive", "negative")
        assert output.outputs[0].finish_reason == "stop"


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }}}
    for name in ("weather", "population")
]  # fmt: skip


def test_a_model_that_was_taught_no_calls_makes_them_all_the_same(server):
    assert_calls(server)


# Each family's grammar and parser meet in tests/unit/grammar/test_replies.py.
@pytest.mark.parametrize(
    "family",
    [
        "qwen3_coder",
        *(
            pytest.param(x, marks=pytest.mark.exhaustive)
            for x in ("gemma4", "deepseek_v3", "mistral")
        ),
    ],
)
def test_calls_in_the_markup_of_another_family(serve, smollm2_gguf, family):
    server = serve(smollm2_gguf, "--tool-call-parser", family, "--max-model-len", "1024")
    server.wait_ready(60)
    assert_calls(server)


def assert_calls(server: Served) -> None:
    """The grammar writes the markup, the family's parser reads it, and arguments are JSON."""
    asked = {"tools": TOOLS, "max_tokens": 200, "temperature": 1, "seed": 5}
    (choice,) = chat(server, tool_choice="required", parallel_tool_calls=False, **asked).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name in ("weather", "population")
    assert set(json.loads(call.function.arguments)) == {"city"}
    named = {"type": "function", "function": {"name": "population"}}
    (choice,) = chat(server, tool_choice=named, **asked).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["population"]
