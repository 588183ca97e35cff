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

# Fields that say what `structured_outputs` says.
_OTHER_NAMES = ("response_format", "grammar", "json_schema")


def wanted_structure(
    body: GenerationBody, default: StructuredOutputsParams | None = None
) -> StructuredOutputsParams | None:
    """What one of the body's fields asks for, or the server's `default` where it has none of them.
    Raises RequestError for several, or a wrong one."""
    asked = {
        "response_format": _of_format(body.response_format),
        "structured_outputs": _of_outputs(body.structured_outputs),
        "grammar": StructuredOutputsParams(grammar=body.grammar) if body.grammar else None,
        "json_schema": _of_schema(body.json_schema),
    }
    asked = {name: wanted for name, wanted in asked.items() if wanted is not None}
    if len(asked) > 1:
        told = f"{' and '.join(asked)} exclude each other; send one."
        raise RequestError(told, next(reversed(asked)))
    if asked:
        return next(iter(asked.values()))
    # A format that is `text` is a choice, too.
    return default if body.response_format is None else None


def _of_outputs(wanted: dict[str, Any] | None) -> StructuredOutputsParams | None:
    if wanted is None:
        return None
    try:
        return msgspec.convert(wanted, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        told = str(error).rstrip(".")
        raise RequestError(f"structured_outputs: {told}.", "structured_outputs") from error


def _of_schema(schema: dict[str, Any] | bool | None) -> StructuredOutputsParams | None:
    return None if schema is None else StructuredOutputsParams(json=schema)


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
        sent = [name for name in _OTHER_NAMES if getattr(body, name)]
        if not sent or not (error.param or "").startswith("structured_outputs"):
            raise
        raise RequestError(error.message, sent[0]) from error


def report_unenforced(response: Response, constraint: Constraint) -> None:
    """Say in a header which parts of the tools' schemas the model is only told of."""
    if constraint.unenforced:
        response.headers["Pagoda-Not-Enforced"] = header_list(constraint.unenforced)
