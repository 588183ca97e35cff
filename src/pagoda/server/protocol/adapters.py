"""Loading and listing of adapters, in vLLM's words and in llama-server's."""

import msgspec
from pydantic import Field

from pagoda.server.protocol.common import Body


class LoadAdapter(Body):
    """An adapter to load, as vLLM is asked for one."""

    lora_name: str = Field(min_length=1, description="What requests give as `model`.")
    lora_path: str = Field(min_length=1, description="A folder of peft, or a GGUF.")
    load_inplace: bool = Field(False, description="Replace the adapter that has the name.")
    model: str | None = Field(None, description="Which model it is for, where there are several.")


class UnloadAdapter(Body):
    """An adapter to unload, as vLLM is asked."""

    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = Field(None, description="Names are what counts; accepted.")


class ListedLora(msgspec.Struct):
    """One of llama-server's list."""

    id: int
    path: str
    scale: float
    task_name: str = ""
    prompt_prefix: str = ""
