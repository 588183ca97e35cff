"""/openapi.json: request schemas from pydantic, reply schemas from msgspec."""

import re
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from pagoda.server.anthropic.errors import AnthropicError
from pagoda.server.errors import ErrorReply
from pagoda.server.protocol.common import Body
from pagoda.version import __version__

_REF = "#/components/schemas/"
BODIES: dict[str, type[Body]] = {}
"""By name, of all routes that were described."""
_STRUCTS: dict[str, type[msgspec.Struct]] = {}

Schema = dict[str, Any]


def describe(
    request: type[Body] | None,
    reply: type[msgspec.Struct] | Schema | None,
    *chunks: type[msgspec.Struct],
    many: bool = False,
    error: type[msgspec.Struct] = ErrorReply,
    refusals: tuple[int, ...] = (),
    lines: type[msgspec.Struct] | None = None,
    takes: str = "application/json",
) -> Schema:
    """`openapi_extra` of a route that reads and writes its bodies itself.

    `reply` is a struct, a media type with a JSON schema, or None for an empty one, or for a stream
    alone; with `many` it
    is a list, or where it can be streamed either. `chunks`: what a stream of events is made of,
    `lines` one of lines. `refusals`: statuses beyond 4XX and what stands for "not now".
    """
    busy = "529" if error is AnthropicError else "503"
    extra: Schema = {
        "responses": {
            "200": {"description": "The reply.", "content": _content(reply, chunks, many)},
            "4XX": _error("What is wrong with the request.", error),
            busy: _error(
                "The model is still loading, or its engine ended; try again later.", error
            ),
            **{str(status): _error("Not offered here.", error) for status in refusals},
        }
    }
    if lines is not None:
        line = {"anyOf": [_struct(lines), _struct(error)]}
        extra["responses"]["200"]["content"]["application/x-ndjson"] = {"schema": line}
    if not extra["responses"]["200"]["content"]:
        del extra["responses"]["200"]["content"]
    if request is not None:
        BODIES[request.__name__] = request
        extra["requestBody"] = {
            "required": True,
            "content": {takes: {"schema": {"$ref": _REF + request.__name__}}},
        }
    return extra


def health_replies(trouble: type[msgspec.Struct]) -> Schema:
    """`openapi_extra` of a probe: nothing when all is well, else what is not."""
    content = {"application/json": {"schema": _struct(trouble)}}
    return {
        "responses": {
            "200": {"description": "All is well."},
            "503": {"description": "What is not well, and why.", "content": content},
            "4XX": _error("What is wrong with the request."),
        }
    }


def refuse(status: int, path: str) -> Schema:
    """`openapi_extra` of a route that always answers with an error."""
    names = re.findall(r"{(\w+)}", path)
    return {
        "responses": {str(status): _error("Not offered here."), "4XX": _error("Refused.")},
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ],
    }


def query(name: str, kind: str, description: str) -> Schema:
    """A parameter of the URL that is optional."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": {"type": kind},
        "description": description,
    }


def _content(
    reply: type[msgspec.Struct] | Schema | None,
    chunks: tuple[type[msgspec.Struct], ...],
    many: bool,
) -> Schema:
    content: Schema = {}
    if isinstance(reply, dict):
        content = dict(reply)
    elif reply is not None:
        schema: Schema = _struct(reply)
        if many:
            listed = {"type": "array", "items": schema}
            schema = {"anyOf": [schema, listed]} if chunks else listed
        content = {"application/json": {"schema": schema}}
    if chunks:
        content["text/event-stream"] = {"schema": _event(chunks)}
    return content


def _event(chunks: tuple[type[msgspec.Struct], ...]) -> Schema:
    """One of a stream; clients parse its data as JSON."""
    told = {"anyOf": [*map(_struct, chunks), _struct(ErrorReply)]}
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": told}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, json]}},
    }


def _error(description: str, error: type[msgspec.Struct] = ErrorReply) -> Schema:
    schema = _struct(error)
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _struct(kind: type[msgspec.Struct]) -> Schema:
    _STRUCTS[kind.__name__] = kind
    return {"$ref": _REF + kind.__name__}


def build_openapi(app: FastAPI) -> Schema:
    """The document; FastAPI keeps what it is given in `app.openapi_schema`."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title="Pagoda API", version=__version__, routes=app.routes,
            description="The APIs of OpenAI, vLLM, llama-server and Ollama, served by Pagoda.",
        )  # fmt: skip
        _, requests = models_json_schema(
            [(model, "validation") for model in BODIES.values()], ref_template=_REF + "{model}"
        )
        _, structs = msgspec.json.schema_components(_STRUCTS.values(), ref_template=_REF + "{name}")
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        components.clear()
        components.update(requests.get("$defs", {}))
        components.update(structs)
        for operations in schema["paths"].values():
            for operation in operations.values():
                # FastAPI's own for parameters; what is wrong with a request is a 400 here.
                operation["responses"].pop("422", None)
        app.openapi_schema = schema
    return app.openapi_schema
