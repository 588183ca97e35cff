"""What a request says of the structure of its reply: formats, tools and the choice among them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.aside.jobs import Constrain
from pagoda.engine.constraint import Constraint, ToolUse
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.header import header_list
from pagoda.server.protocol.common import GenerationBody, ResponseFormat


def wanted_structure(
    body: GenerationBody, default: StructuredOutputsParams | None = None
) -> StructuredOutputsParams | None:
    """`response_format` or `structured_outputs`, or the server's `default` where the body has
    neither. Raises RequestError for both, or a wrong one."""
    if body.response_format is None and body.structured_outputs is None:
        return default
    asked = _of_format(body.response_format)
    if body.structured_outputs is None:
        return asked
    if asked is not None:
        raise RequestError(
            "response_format and structured_outputs exclude each other; send one.",
            "structured_outputs",
        )
    try:
        return msgspec.convert(body.structured_outputs, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        told = str(error).rstrip(".")
        raise RequestError(f"structured_outputs: {told}.", "structured_outputs") from error


def _of_format(wanted: ResponseFormat | None) -> StructuredOutputsParams | None:
    if wanted is None:
        return None
    match wanted.type:
        case "text":
            return None
        case "json_object":
            schema = wanted.own_schema
            if schema is None:
                return StructuredOutputsParams(json_object=True)
            return StructuredOutputsParams(json=schema)
        case "json_schema":
            return StructuredOutputsParams(json=_schema(wanted))
        case "structural_tag":
            return StructuredOutputsParams(structural_tag=dict(wanted.model_extra or {}))
        case other:
            raise RequestError(
                f"response_format.type is {other!r}; it must be text, json_object, json_schema or "
                "structural_tag.",
                "response_format.type",
            )


def _schema(wanted: ResponseFormat | None) -> Any:
    if wanted is not None and wanted.json_schema is None and wanted.own_schema is not None:
        return wanted.own_schema
    given = wanted.json_schema if wanted is not None else None
    if given is None or "schema" not in given:
        raise RequestError(
            "response_format of type json_schema needs json_schema.schema.",
            "response_format.json_schema",
        )
    return given["schema"]


def tool_use(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] | None, parallel: bool
) -> ToolUse:
    """The tools that a reply may call. Raises RequestError for a choice that cannot be met."""
    if choice == "none" or (not tools and choice in (None, "auto")):
        return ToolUse()
    if not tools:
        raise RequestError("tool_choice asks for a call, but there are no tools.", "tool_choice")
    if choice in (None, "auto", "required"):
        return ToolUse(tools, choice == "required", parallel)
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "function":
            return ToolUse(_named(tools, [_name(choice)]), True, several=False)
        allowed = choice.get("allowed_tools", choice)
        if kind == "allowed_tools" and isinstance(allowed, Mapping):
            listed = allowed.get("tools")
            listed = listed if isinstance(listed, list) else []
            names = [_name(tool) for tool in listed if isinstance(tool, Mapping)]
            return ToolUse(_named(tools, names), allowed.get("mode") == "required", parallel)
    raise RequestError(
        "tool_choice must be none, auto, required, a function or allowed_tools.", "tool_choice"
    )


def is_named(choice: str | Mapping[str, Any] | None) -> bool:
    """Whether one function was asked for by name; such a reply ends with `stop`, as OpenAI's."""
    return isinstance(choice, Mapping) and choice.get("type") == "function"


def _named(tools: Sequence[Mapping[str, Any]], names: Sequence[Any]) -> list[Mapping[str, Any]]:
    by_name = {_name(tool): tool for tool in tools}
    for name in names:
        if name not in by_name:
            raise RequestError(
                f"tool_choice names {name!r}, which is none of the tools: "
                f"{', '.join(map(str, by_name))[:500]}.",
                "tool_choice",
            )
    if not names:
        raise RequestError("tool_choice names no tool.", "tool_choice")
    return [by_name[name] for name in names]


def _name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function")
    name = (function if isinstance(function, Mapping) else tool).get("name")
    return name if isinstance(name, str) else None


async def constrained(body: GenerationBody, served: ServedModel, job: Constrain) -> Constraint:
    """The grammar, worked out beside the event loop: schemas are anyone's.

    Its RequestErrors name the field that the body has.
    """
    try:
        return await served.aside.constrain(job)
    except RequestError as error:
        named = error.param or ""
        if body.response_format is None or not named.startswith("structured_outputs"):
            raise
        raise RequestError(error.message, "response_format") from error


def report_unenforced(response: Response, constraint: Constraint) -> None:
    """Say in a header which parts of the tools' schemas the model is only told of."""
    if constraint.unenforced:
        response.headers["Pagoda-Not-Enforced"] = header_list(constraint.unenforced)
