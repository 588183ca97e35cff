"""Every error of the API in one shape: `{"error": {"message", "type", "param", "code"}}`, but for
the routes that speak Anthropic's dialect or Ollama's."""

from collections.abc import Mapping

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from pagoda.base import errors
from pagoda.base.log import get_logger
from pagoda.server.anthropic.errors import REQUEST_ID, error_reply, is_anthropic, status_of
from pagoda.server.ollama.errors import error_reply as ollama_error
from pagoda.server.ollama.errors import is_ollama

_log = get_logger(__name__)

# Seconds after which a client may try again; an engine restart takes about that long.
RETRY_AFTER = 5

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    505: "VersionNotSupportedError",
}


class ErrorInfo(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorReply(msgspec.Struct):
    error: ErrorInfo


class ApiError(errors.PagodaError):
    """An error with its HTTP status, ready to be sent."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.info = ErrorInfo(
            message=message,
            type=kind or _TYPES.get(status, "InternalServerError"),
            param=param,
            code=status,
        )

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorReply(self.info))

    def response(self, scope: Scope) -> Response:
        """In the dialect of the request's route."""
        status, body = self.status, self.body()
        if is_anthropic(scope):
            status = status_of(status)
            body = error_reply(status, str(self), scope.get(REQUEST_ID))
        elif is_ollama(scope):
            body = ollama_error(str(self))
        return Response(body, status, self.headers, media_type="application/json")


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, headers={"Retry-After": str(RETRY_AFTER)})


def to_api_error(error: BaseException) -> ApiError:
    """The API's answer to any exception; unexpected ones are logged and kept vague."""
    match error:
        case ApiError():
            return error
        case errors.ModelNotFoundError():
            return ApiError(404, error.message, param="model")
        case errors.QueueFullError():
            return unavailable(error.message)
        case errors.RequestError():
            return ApiError(400, error.message, param=error.param)
        case errors.CapacityError():
            return unavailable(str(error))
        case errors.EngineDeadError():
            cause = str(error)
            named = cause.startswith("The engine")
            return unavailable(cause if named else f"The engine stopped: {cause}")
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case ClientDisconnect():
            # In the middle of its body; nobody reads this.
            return ApiError(499, "The client closed the connection.")
        case _:
            _log.error("Unexpected error while serving a request.", exc_info=error)
            return ApiError(500, "An internal error occurred; the server's log has the details.")


async def _handle(request: Request, error: Exception) -> Response:
    return to_api_error(error).response(request.scope)


def install_handlers(app: FastAPI) -> None:
    for kind in (errors.PagodaError, HTTPException):
        app.add_exception_handler(kind, _handle)
