"""transformers on a GGUF's weights, expanded by the `gguf` package to --dtype. `forward` with its
DynamicCache: what `generate` does around it stays out."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from protocol import divergence, log_softmax, random_ids, serve, timed

from tests.golden.reference import load_reference


class Transformers:
    version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    @torch.inference_mode()
    def __init__(self, args: argparse.Namespace):
        torch.set_num_threads(args.threads)
        # Not transformers' own reader of GGUF, which may keep weights packed.
        self._model = load_reference(Path(args.model)).to(getattr(torch, args.dtype))
        self._vocab_size = self._model.config.vocab_size
        self._rng = np.random.default_rng(0)
        self.flags = f"{args.dtype}, attention {self._model.config._attn_implementation}"

    @torch.inference_mode()
    def decode(self, tokens: int) -> dict[str, Any]:
        return self._decode(1, 0, tokens)

    @torch.inference_mode()
    def batch_decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        return self._decode(requests, prompt, tokens)

    @torch.inference_mode()
    def depth(self, context: int, tokens: int) -> dict[str, Any]:
        return self._decode(1, context, tokens)

    @torch.inference_mode()
    def prefill(self, tokens: int) -> dict[str, Any]:
        ids = self._random(1, tokens)
        seconds = timed(lambda: self._model(input_ids=ids, logits_to_keep=1))
        return {"seconds": seconds, "tokens": tokens}

    @torch.inference_mode()
    def divergence(self, ids: list[int], reference: str) -> dict[str, Any]:
        return divergence(reference, self._logits(ids))

    @torch.inference_mode()
    def reference(self, ids: list[int], path: str) -> dict[str, Any]:
        """Write the log-probabilities of each token behind the first, for others to be compared."""
        np.save(path, log_softmax(self._logits(ids)[:-1]))
        return {"positions": len(ids) - 1}

    @torch.inference_mode()
    def sample(self, texts: int, tokens: int, first: int) -> dict[str, Any]:
        """Texts that the model writes itself at temperature 1, each from the id `first`."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.full((texts, 1), first)
        cache = transformers.DynamicCache()
        while ids.shape[1] < tokens:
            out = self._model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
            chances = out.logits[:, -1].float().softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], dim=1)
        return {"ids": ids.tolist()}

    def _logits(self, ids: list[int]) -> np.ndarray:
        logits: np.ndarray = self._model(input_ids=torch.tensor([ids])).logits[0].float().numpy()
        return logits

    def _decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        cache = transformers.DynamicCache()
        if prompt:
            ids = self._random(requests, prompt)
            self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

        def run() -> None:
            for _ in range(tokens):
                ids = self._random(requests, 1)
                self._model(input_ids=ids, past_key_values=cache, use_cache=True)

        return {"seconds": timed(run), "tokens": requests * tokens}

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return torch.tensor(random_ids(rows * columns, self._vocab_size, self._rng)).view(
            rows, columns
        )


if __name__ == "__main__":
    serve(Transformers)
