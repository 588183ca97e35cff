"""Frameworks that get structured output by calls, with the default model, which was taught none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.fakes import FakeClient
from tests.system.conftest import starter
from tests.system.harness import Served
from tests.unit.text.templates import CHATML

# Installing a framework takes a minute the first time.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Iterator[Served]:
    with starter() as start:
        served = start(smollm2_gguf, "--alias", "smollm2", "--max-model-len", 2048)
        served.wait_ready(60)
        yield served


def is_person(value: dict[str, object]) -> bool:
    return isinstance(value["name"], str) and isinstance(value["age"], int)


def test_instructor(smollm2, run_in):
    """Each mode whole and streamed."""
    told = run_in(("instructor>=1.8,<2",), "use_instructor.py", f"{smollm2.url}/v1", "smollm2")
    assert set(told) == {"TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"}
    assert all(is_person(person) for both in told.values() for person in both)


def test_pydantic_ai(smollm2, run_in, start):
    def scripted(request) -> bytes:
        if b'<tool_response id="' in bytes(request.prompt_token_ids):
            return b"Take an umbrella."
        return b'<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'

    template = ChatTemplate({"default": CHATML}, {})
    fake = start(FakeClient(scripted), chat_template=template, parser=parser_for(CHATML))
    told = run_in(
        ("pydantic-ai-slim[openai]>=1.20,<3",), "use_pydantic_ai.py",
        f"{smollm2.url}/v1", "smollm2", f"{fake.url}/v1",
    )  # fmt: skip
    assert told.pop("tool") == "Take an umbrella."
    assert is_person(told["ToolOutput"]) and is_person(told["NativeOutput"])
    # The call and its result came back in the prompt.
    prompt = bytes(fake.client.requests[-1].prompt_token_ids).decode()
    assert 'name="weather">\nIt rains in Paris.' in prompt and '"city":"Paris"' in prompt
