"""From a form with a file (multipart/form-data) to its checked model."""

from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pagoda.server.bodies.asker import asker_of
from pagoda.server.bodies.body import BodyT, parse_fields, report_unknown
from pagoda.server.errors import ApiError
from pagoda.server.protocol.common import TextBody

_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 1 << 20


async def read_form(request: Request, model: type[BodyT], lists: tuple[str, ...] = ()) -> BodyT:
    """Parse and check a form, whose files become bytes; ApiError 400 names what is wrong. Fields of
    `lists` may come several times, with [] behind their names or without."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise ApiError(400, f"The Content-Type is {kind[:100]!r}; send 'multipart/form-data'.")
    fields: dict[str, Any] = {}
    try:
        async with request.form(
            max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
        ) as form:
            for key, value in form.multi_items():
                name = key.removesuffix("[]")
                given = await value.read() if isinstance(value, UploadFile) else value
                if name in lists:
                    fields.setdefault(name, []).append(given)
                else:
                    fields[name] = given
    except HTTPException as error:
        raise ApiError(400, f"The form can't be read: {error.detail}") from None
    body = parse_fields(fields, model, request.url.path)
    if isinstance(body, TextBody):
        body.comes_from(asker_of(request.headers, None))
    report_unknown(request.scope, body)
    return body
