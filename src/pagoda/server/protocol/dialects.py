"""What the bodies of other dialects share: each is a chat request in other words."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pagoda.server.protocol.common import (
    IGNORED_GENERATION,
    UNSUPPORTED_GENERATION,
    UNSUPPORTED_STRUCTURE,
    GenerationBody,
)

# Of the chat API, and nothing that these dialects have a place for in their replies.
_NOT_HERE: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "n": (1,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "truncate_prompt_tokens": (),
}
# The routes read these themselves.
_OWN = _NOT_HERE.keys() | {"request_id", "stream", "stream_options"}


class DialectBody(GenerationBody):
    """Sampling fields are those of the chat API, under the same names."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **UNSUPPORTED_GENERATION,
        **UNSUPPORTED_STRUCTURE,
        **_NOT_HERE,
    }
    IGNORED: ClassVar[Mapping[str, str]] = IGNORED_GENERATION

    chat_template_kwargs: dict[str, Any] = {}

    def sampling_fields(self) -> dict[str, Any]:
        """Those that the request has, for the body of a chat request."""
        shared = GenerationBody.model_fields.keys() - _OWN
        return self.model_dump(include=set(shared), exclude_unset=True)
