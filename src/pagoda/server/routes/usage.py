"""GET /v1/usage."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import context_of
from pagoda.server.errors import ApiError
from pagoda.server.keys.account import asking
from pagoda.server.openapi import describe
from pagoda.server.protocol.usage import UsageList
from pagoda.server.replies.respond import json_reply

router = APIRouter()


@router.get("/v1/usage", openapi_extra=describe(None, UsageList))
async def usage(request: Request) -> Response:
    """Requests and tokens of the key that asks, by model; of all keys for one that may manage the
    server."""
    keyring, account = context_of(request).keyring, asking()
    if keyring is None:
        raise ApiError(404, "Usage is counted by named keys; start the server with --api-key-file.")
    if account is not None and not account.entry.admin:
        return json_reply(UsageList(data=[keyring.ledger.row(account.name)]))
    for name in keyring.names():
        keyring.ledger.row(name)  # also of those that asked nothing yet
    return json_reply(UsageList(data=keyring.ledger.rows()))
