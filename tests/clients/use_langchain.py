"""A chat with a tool through langchain-openai: whole, streamed, and with the tool's answer."""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It rains in {city}."


url, plain_url = sys.argv[1:]
model = ChatOpenAI(base_url=url, api_key="none", model="fake", max_retries=0)
asking = model.bind_tools([weather])
question = HumanMessage("How is the weather in Paris?")
called = asking.invoke([question])
streamed = None
for chunk in asking.stream([question]):
    streamed = chunk if streamed is None else streamed + chunk
answers = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
           for call in called.tool_calls]  # fmt: skip
plain = ChatOpenAI(base_url=plain_url, api_key="none", model="fake", max_retries=0)
final = plain.bind_tools([weather]).invoke([question, called, *answers])
print(
    json.dumps(
        {
            "called": [(call["name"], call["args"]) for call in called.tool_calls],
            "streamed": [(call["name"], call["args"]) for call in streamed.tool_calls],
            "usage": called.usage_metadata["output_tokens"],
            "final": final.content,
        }
    )
)
