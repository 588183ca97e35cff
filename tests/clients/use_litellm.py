"""A chat with a tool through litellm: whole and streamed."""

import json
import sys

import litellm

tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
asked = {
    "model": "openai/fake",
    "api_base": sys.argv[1],
    "api_key": "none",
    "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
    "tools": tools,
    "num_retries": 0,
}
whole = litellm.completion(**asked)
chunks = list(litellm.completion(**asked, stream=True))
rebuilt = litellm.stream_chunk_builder(chunks)


def calls(reply):
    found = reply.choices[0].message.tool_calls
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


print(
    json.dumps(
        {
            "called": calls(whole),
            "streamed": calls(rebuilt),
            "finish": whole.choices[0].finish_reason,
            "usage": whole.usage.completion_tokens,
        }
    )
)
