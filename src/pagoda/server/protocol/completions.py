"""Body of /v1/completions."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from pagoda.server.protocol.common import UNSUPPORTED_GENERATION, GenerationBody, MovableBody

_TOKENS = {"type": "array", "items": {"type": "integer"}}
# A union would be tried branch by branch over lists of 100,000 ids; `prompts.py` looks once.
Prompt = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                _TOKENS,
                {"type": "array", "items": _TOKENS},
            ]
        }
    ),
]


class CompletionRequest(MovableBody, GenerationBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **{
            name: harmless
            for name, harmless in UNSUPPORTED_GENERATION.items()
            if name != "kv_transfer_params"
        },
        "suffix": ("",),
    }

    prompt: Prompt
    max_tokens: int | None = Field(
        None, ge=0, description="16 by default; 0 only with echo: it scores the prompt."
    )
    logprobs: int | None = Field(None, ge=-1)
    add_special_tokens: bool = True

    def default_length(self, of_model: int | None) -> int | None:
        return super().default_length(16 if of_model is None else of_model)
