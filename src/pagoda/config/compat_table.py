"""Every flag that only others have, and the help of none."""

from pagoda.config.compat_llama import LLAMA
from pagoda.config.compat_row import Compat
from pagoda.config.compat_vllm import VLLM

TABLE: tuple[Compat, ...] = (*VLLM, *LLAMA)
