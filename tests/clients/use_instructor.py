"""What instructor makes of its modes, with the model that a server has."""

import json
import sys

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person that a text speaks of."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


def ask(mode):
    client = instructor.from_openai(
        openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0), mode=mode
    )
    asked = {
        "model": sys.argv[2],
        "response_model": Person,
        "max_retries": 2,
        "temperature": 0,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": "Extract: Anna is 31 years old."}],
    }
    whole = client.chat.completions.create(**asked)
    *_, streamed = client.chat.completions.create_partial(**asked)
    return whole.model_dump(), streamed.model_dump()


modes = instructor.Mode
print(
    json.dumps(
        {mode.name: ask(mode) for mode in (modes.TOOLS, modes.TOOLS_STRICT, modes.JSON_SCHEMA)}
    )
)
