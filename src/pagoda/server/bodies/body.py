"""From the bytes of a request to its checked model."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request
from starlette.types import Scope

from pagoda.base.log import get_logger
from pagoda.server.bodies.asker import asker_of
from pagoda.server.bodies.faults import fault_words
from pagoda.server.bodies.volume import check_volume
from pagoda.server.errors import ApiError
from pagoda.server.protocol.common import Body, TextBody

_log = get_logger(__name__)

BodyT = TypeVar("BodyT", bound=Body)
ItemT = TypeVar("ItemT", bound=BaseModel)

_MAX_REPORTED = 10
# More are not even looked at: `logit_bias` has room for a million wrong keys.
_MAX_LISTED = 200
_MAX_NAME = 64
UNKNOWN_FIELDS = "pagoda.unknown_fields"
"""Where a request's scope has the names of fields that nobody knows."""
MAX_FIELDS = 1024
"""The most fields of a body itself; those that no route knows are kept and sorted for a line of the
log."""


async def read_body(request: Request, model: type[BodyT]) -> BodyT:
    """Parse and check the JSON body; ApiError 400 names the field that is wrong, 415 a coding."""
    body = parse_fields(await read_object(request), model, request.url.path)
    if isinstance(body, TextBody):
        body.comes_from(asker_of(request.headers, getattr(body, "prompt_cache_key", None)))
    report_unknown(request.scope, body)
    return body


async def read_items(request: Request, model: type[ItemT]) -> list[ItemT]:
    """Parse and check a body that is a JSON list of such objects; raises as `read_body`."""
    items = await _decoded(await _raw_body(request))
    if not isinstance(items, list):
        raise ApiError(400, "The body must be a JSON list.", kind="Bad Request")
    try:
        return [model.model_validate(item) for item in items]
    except ValidationError as error:
        raise _validation_error(error, {}) from None


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object that is the body; ApiError 400 for anything else and for one that holds too
    much, 415 for a coding."""
    return await parse_object(await _raw_body(request))


async def _raw_body(request: Request) -> bytes:
    """The body, if it is sent as JSON."""
    content_type = request.headers.get("content-type", "")
    if not _is_json(content_type) and not _is_typed(content_type, request.headers):
        raise ApiError(
            400, f"The Content-Type is {content_type[:100]!r}; send 'application/json'.",
            kind="Bad Request",
        )  # fmt: skip
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        # Never unpacked: a few bytes can hold gigabytes.
        raise ApiError(415, f"The Content-Encoding is {coding[:100]!r}; send the body as it is.")
    return await request.body()


async def _decoded(raw: bytes) -> Any:
    """What the JSON says, if it is not too much."""
    await check_volume(raw)
    try:
        # Strict where the standard library is not: no NaN, no lone surrogates.
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", kind="Bad Request") from None
    except RecursionError:
        raise ApiError(400, "The JSON is nested too deeply.", kind="Bad Request") from None


async def parse_object(raw: bytes) -> dict[str, Any]:
    """As `read_object`, of bytes that came otherwise."""
    fields = await _decoded(raw)
    if not isinstance(fields, dict):
        raise ApiError(400, "The body must be a JSON object.", kind="Bad Request")
    if len(fields) > MAX_FIELDS:
        raise ApiError(400, f"The body has more than {MAX_FIELDS} fields; send fewer of them.")
    return fields


def parse_fields(fields: dict[str, Any], model: type[BodyT], route: str) -> BodyT:
    """null stands for the default of its field, so such fields are dropped first."""
    present = {name: value for name, value in fields.items() if value is not None}
    _refuse_unsupported(present, model.UNSUPPORTED)
    try:
        body = model.model_validate(present)
    except ValidationError as error:
        raise _validation_error(error, present) from None
    except RecursionError:
        raise ApiError(400, "The JSON is nested too deeply.", kind="Bad Request") from None
    _log_unknown(body, route)
    return body


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (
        media.startswith("application/") and media.endswith("+json")
    )


def _is_typed(content_type: str, headers: Mapping[str, str]) -> bool:
    """Whether it is what `curl -d` sends in a terminal, where tutorials leave the type out.

    A page's form has the same type. Browsers say whose page it is; where one does, the type must be
    JSON's, which a page of another site cannot send unasked.
    """
    if content_type not in ("", "application/x-www-form-urlencoded"):
        return False
    return not any(name in headers for name in ("origin", "referer", "sec-fetch-site"))


def _refuse_unsupported(
    fields: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]
) -> None:
    for name in fields.keys() & unsupported.keys():
        harmless = unsupported[name]
        if fields[name] not in harmless:
            advice = (
                f"Leave it out or send {harmless[0]!r}." if harmless else "Leave the field out."
            )
            if name.startswith("guided_"):
                advice = f"Send structured_outputs: {{{name.removeprefix('guided_')!r}: ...}}."
            raise ApiError(400, f"{name} is not supported with this value. {advice}", param=name)


def _validation_error(error: ValidationError, body: Any) -> ApiError:
    if error.error_count() > _MAX_LISTED:
        return ApiError(
            400, f"{error.error_count():,} values are wrong: this is no body of this route.",
            kind="Bad Request",
        )  # fmt: skip
    faults: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        faults.setdefault(dotted_path(detail, body), []).append(detail)
    # Of a union the branch that got deepest tells most: `stop.0`, not `stop`.
    faults = {
        path: details
        for path, details in faults.items()
        if not any(other.startswith(path + ".") for other in faults)
    }
    shown = [fault_words(path, details) for path, details in faults.items()][:_MAX_REPORTED]
    count = f"{len(faults)} fields are wrong: " if len(faults) > 1 else ""
    words = count + "; ".join(shown) + "."
    return ApiError(
        400,
        words[0].upper() + words[1:] if "" in faults else words,
        param=next(iter(faults)) or None,
        kind="Bad Request",
    )


def dotted_path(detail: ErrorDetails, body: Any) -> str:
    """`messages.0.content`, without the names of union branches that pydantic puts in between."""
    path = []
    value = body
    last = len(detail["loc"]) - 1
    for position, part in enumerate(detail["loc"]):
        if _leads_into(value, part):
            value = value[part]
        elif position < last or detail["type"] != "missing":
            continue
        path.append(str(part))
    return ".".join(path)


def _leads_into(value: Any, part: int | str) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def report_unknown(scope: Scope, body: Body, path: str = "") -> None:
    """Have the reply's head name the fields that nobody knows, of an object at `path` in the
    body."""
    told: list[str] = scope.setdefault(UNKNOWN_FIELDS, [])
    told += [path + name[:_MAX_NAME] for name in _unknown(body)[: _MAX_REPORTED - len(told)]]


def _unknown(body: Body) -> list[str]:
    # What is unsupported got this far only with a value that changes nothing.
    return sorted((body.model_extra or {}).keys() - body.IGNORED.keys() - body.UNSUPPORTED.keys())


def _log_unknown(body: Body, route: str) -> None:
    unknown = _unknown(body)
    if unknown:
        names = ", ".join(repr(name[:_MAX_NAME]) for name in unknown[:_MAX_REPORTED])
        more = len(unknown) - _MAX_REPORTED
        _log.warning(
            "%s: ignored unknown fields: %s%s",
            route,
            names,
            f" and {more} more" if more > 0 else "",
        )
