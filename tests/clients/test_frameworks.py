"""Agents' frameworks point at Pagoda and work: one chat with a tool through each."""

import pytest

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARIS = ["weather", {"city": "Paris"}]

# Installing a framework takes a minute the first time.
pytestmark = pytest.mark.timeout(900)


def test_langchain(serve, run_in):
    calling, telling = serve(CALL), serve("Take an umbrella.")
    told = run_in(
        ("langchain-openai>=1,<2",), "use_langchain.py", f"{calling.url}/v1", f"{telling.url}/v1"
    )
    assert told["called"] == told["streamed"] == [PARIS]
    assert told["final"] == "Take an umbrella."
    assert told["usage"] > 0
    # The call and its result came back in the prompt.
    prompt = bytes(telling.client.requests[-1].prompt_token_ids).decode()
    assert "It rains in Paris." in prompt and '"city": "Paris"' in prompt


def test_litellm(serve, run_in):
    told = run_in(("litellm>=1.80,<2", "mcp"), "use_litellm.py", f"{serve(CALL).url}/v1")
    assert told["called"] == told["streamed"] == [PARIS]
    assert told["finish"] == "tool_calls" and told["usage"] > 0
