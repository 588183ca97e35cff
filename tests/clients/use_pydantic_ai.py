"""Agents of pydantic-ai: output in two modes by the model of one server, a tool with another's."""

import json
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    """A person that a text speaks of."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


def model_of(url, name):
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="none"))


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It rains in {city}."


model, scripted = model_of(sys.argv[1], sys.argv[2]), model_of(sys.argv[3], "fake")
settings = {"temperature": 0, "max_tokens": 400}
told = {}
for kind in (ToolOutput, NativeOutput):
    agent = Agent(model, output_type=kind(Person), retries=1, model_settings=settings)
    told[kind.__name__] = agent.run_sync("Anna is 31 years old.").output.model_dump()
helped = Agent(scripted, tools=[weather]).run_sync("How is the weather in Paris?")
print(json.dumps({**told, "tool": helped.output}))
