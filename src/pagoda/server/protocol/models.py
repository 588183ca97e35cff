"""Bodies of the routes that load and unload models."""

from pydantic import Field

from pagoda.server.protocol.common import Body


class ModelRequest(Body):
    model: str = Field(min_length=1)
