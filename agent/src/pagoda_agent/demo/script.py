"""The model of the demonstration: a script behind OpenAI's API, which looks at no picture: it knows
where the form's widgets are."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pagoda_agent.demo.desktop import HEIGHT, WIDTH, Desktop

MODEL = "demo-script"
PROFILE = "nanokvm"
CUSTOMER = "Ada Lovelace"
TASK = f"Order the book for {CUSTOMER}, by express."
# As the agent tells a model of a person's answer (`task/step.py`).
_REFUSED = "Refused by the user"


class Script:
    """Answers by what the form holds, so that a pause, a hint or a refusal confuse it as little as
    a model."""

    def __init__(self, desktop: Desktop):
        self._desktop = desktop

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        seen = {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
        return JSONResponse({"data": [{"id": MODEL, "object": "model", "architecture": seen}]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        messages = body["messages"]
        begins = not any(message["role"] == "assistant" for message in messages)
        if begins and self._desktop.state["sent"]:
            await self._desktop.renew()
            text = "# The form still shows the last order: I wait until it is empty.\nsleep 1"
        else:
            text = reply(self._desktop.state, _said(messages[-1]))
        chunk = {
            "id": "demo",
            "object": "chat.completion.chunk",
            "model": MODEL,
            "created": 0,
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0},
        }
        # The agent asks for a stream.
        events = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        return Response(events, media_type="text/event-stream")


def reply(form: Mapping[str, Any], last: str) -> str:
    """The next step, in the words of the profile `nanokvm`. `last` is the last message to the
    model."""
    if form["sent"]:
        return "# The form says that the order is on its way.\nDone"
    if _REFUSED in last:
        return "# You do not want that, so I leave the form as it is.\nDone"
    if not form["name"]:
        if form["focused"]:
            return f"# The cursor is in the field: I write the name.\ntypestr {CUSTOMER}"
        return f"# I see a form. I click into the field for the name.\n{_click(form, 'name')}"
    if form["delivery"] != "express":
        return f"# The name is there. I choose the express delivery.\n{_click(form, 'express')}"
    return f"# All is filled in: I send the order.\n{_click(form, 'send')}"


def _click(form: Mapping[str, Any], widget: str) -> str:
    x, y = form["places"][widget]
    return f"mouse {round(1000 * x / WIDTH)} {round(1000 * y / HEIGHT)} 1"


def _said(message: Mapping[str, Any]) -> str:
    return json.dumps(message["content"])
