"""Bodies of the routes that give vectors or scores instead of text."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from pagoda.server.protocol.chat import ChatMessage
from pagoda.server.protocol.common import Items, QueuedBody
from pagoda.server.protocol.native import NativePrompt

_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
# Checked by `texts_of`: a union's errors would name branches instead of the field.
Texts = Annotated[Any, WithJsonSchema(_TEXTS)]


class PoolingBody(QueuedBody):
    """What all of these routes take."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "mm_processor_kwargs": ({},),
        "padding": (False,),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {"user": "For OpenAI's own platform."}

    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Keep only so many tokens of a text; -1 fits the context."
    )
    truncation_side: Literal["left", "right"] = "right"
    add_special_tokens: bool | None = Field(
        None, description="True by default for texts, False for messages."
    )
    use_activation: bool | None = Field(
        None, description="Normalize vectors, or put scores through the classifier's function."
    )


class InputBody(PoolingBody):
    """Texts one by one."""

    input: NativePrompt | None = None
    messages: Items[ChatMessage] | None = Field(
        None, min_length=1, description="A conversation in place of `input`."
    )
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class VectorBody(InputBody):
    normalize: bool | None = Field(None, description="As use_activation.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)


class EmbeddingRequest(VectorBody):
    pass


class PoolingRequest(VectorBody):
    task: Literal["embed", "token_embed", "classify"] | None = Field(
        None, description="classify where the model has a classifier, else embed."
    )


class ClassifyRequest(InputBody):
    pass


class ScoreRequest(PoolingBody):
    """One of the pairs of names; a single text on one side goes with each of the other."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None


class RerankRequest(PoolingBody):
    query: str
    documents: Items[str | dict[str, Any]] | None = Field(
        None, min_length=1, description="Texts, or {text}."
    )
    texts: Items[str] | None = Field(
        None,
        min_length=1,
        description="In place of documents, as Text Embeddings Inference has it: the reply is a "
        "list then.",
    )
    top_n: int | None = Field(None, ge=0, description="So many of the best; 0 gives all.")
    return_documents: bool = True
    max_tokens_per_doc: int | None = Field(None, ge=1)
    return_text: bool = Field(False, description="With texts: each result has its text.")
    raw_scores: bool = Field(False, description="With texts: scores as the model gave them.")
    truncate: bool = Field(False, description="With texts: long ones are cut to fit.")


class NativeEmbeddingRequest(PoolingBody):
    """A body of llama-server's /embedding."""

    content: NativePrompt | None = None
    input: NativePrompt | None = None
    embd_normalize: int = Field(
        2, ge=-1, description="-1: not, 0: largest is 32760, 1: sum, 2: length, else that norm."
    )
