"""Which adapter a script's prompts run with, in vLLM's words."""

from typing import NamedTuple


class LoRARequest(NamedTuple):
    """An adapter of `LLM.generate` and `LLM.chat`; it is loaded when it is first used."""

    lora_name: str
    lora_int_id: int
    """vLLM tells adapters apart by it; here their content does."""
    lora_path: str
    """A folder of peft, or llama.cpp's GGUF."""
