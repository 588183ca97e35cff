"""Pagoda, stepped in this process. Greedy sampling is inside its times."""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from protocol import divergence, serve, timed

from pagoda.base.log import setup_logging
from pagoda.bench.inprocess import BenchEngine
from pagoda.config.engine import EngineConfig
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.startup import start_engine
from pagoda.version import __version__

# Steps of the batch that `batch_decode` reads at once: 16 prompts of 128.
_BATCH = 2048
_SCORE = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)


class Pagoda:
    version = f"pagoda {__version__}"

    def __init__(self, args: argparse.Namespace):
        setup_logging("warning")
        config = EngineConfig()
        config = replace(
            config,
            model=replace(config.model, model=args.model, max_model_len=args.context),
            cache=replace(config.cache, kv_cache_dtype="float16"),
            scheduler=replace(config.scheduler, max_num_seqs=16, max_num_batched_tokens=_BATCH),
            device=replace(config.device, device="cpu", threads=args.threads),
            speculation=SpeculationConfig({"method": "none"}),
        )
        self._core, ready = start_engine(config, lambda message: None)
        self._engine = BenchEngine(self._core, ready)
        self._depths: dict[int, list[int]] = {}
        # Not before the engine: what it sets for OpenMP must be there when torch loads.
        from pagoda.kernels import cpu

        native = self._native = cpu.native()
        kernels = "torch" if native is None else f"{native.isa} kernels"
        self.flags = (
            f"-t {args.threads} --kv-cache-dtype float16 --max-num-batched-tokens {_BATCH}, "
            f"else defaults; {kernels}"
        )

    def decode(self, tokens: int) -> dict[str, Any]:
        prompt = self._engine.random_prompt(1)
        return {"seconds": self._engine.run([prompt], [tokens]), "tokens": tokens}

    def prefill(self, tokens: int) -> dict[str, Any]:
        prompt = self._engine.random_prompt(tokens)
        return {"seconds": self._engine.run([prompt], [1]), "tokens": tokens}

    def batch_decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        prompts = [self._engine.random_prompt(prompt) for _ in range(requests)]
        seconds, count = self._engine.run_decode(prompts, [tokens + 1] * requests)
        return {"seconds": seconds, "tokens": count}

    def depth(self, context: int, tokens: int) -> dict[str, Any]:
        """The prefix cache holds the first `context` tokens."""
        if context not in self._depths:
            self._depths[context] = self._engine.random_prompt(context)
        prompt = [*self._depths[context], *self._engine.random_prompt(1)]
        self._engine.run([prompt], [1])
        return {"seconds": self._engine.run([prompt], [tokens]), "tokens": tokens}

    def divergence(self, ids: list[int], reference: str) -> dict[str, Any]:
        return divergence(reference, self._logits(ids))

    def read(self, size: int, passes: int) -> dict[str, Any]:
        """Bytes of a buffer of `size` that the kernels' threads read."""
        native = self._native
        if native is None:
            raise RuntimeError("there are no native kernels here")
        from pagoda.kernels.cpu import _native

        buffer = np.empty(size, np.uint8)
        address = buffer.ctypes.data
        _native.use_huge_pages(address, size)
        buffer.fill(1)
        native.probe_read(address, size)
        samples = [timed(lambda: native.probe_read(address, size)) for _ in range(passes)]
        return {"seconds": sum(samples), "tokens": passes * size}

    def _logits(self, ids: list[int]) -> np.ndarray:
        """Teacher-forced, fp32 [ids - 1, vocab] at least: what the prompt is scored by."""
        model = self._core.executor.runner.model
        compute, seen = model.compute_logits, []

        def recording(hidden: Any) -> Any:
            logits = compute(hidden)
            seen.append(logits.float().numpy().copy())
            return logits

        model.compute_logits = recording
        try:
            self._core.handle(AddRequest(req_id="score", prompt_token_ids=ids, sampling=_SCORE))
            while self._core.has_work():
                self._core.step()
        finally:
            del model.compute_logits
        return np.concatenate(seen)


if __name__ == "__main__":
    serve(Pagoda)
