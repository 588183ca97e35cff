"""onnxruntime-genai on a folder that its model builder made."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
from protocol import random_ids, serve, timed


class OnnxRuntime:
    version = f"onnxruntime-genai {version('onnxruntime-genai')}"

    def __init__(self, args: argparse.Namespace):
        settings = json.loads((Path(args.model) / "genai_config.json").read_text())
        options = {"intra_op_num_threads": args.threads}
        config = og.Config(args.model)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = og.Model(config)
        self._vocab_size = settings["model"]["vocab_size"]
        self._context = args.context
        self._rng = np.random.default_rng(0)
        self.flags = f"int4, blocks of 32, accuracy level 4, intra_op_num_threads={args.threads}"

    def decode(self, tokens: int) -> dict[str, Any]:
        return self._decode(1, 1, tokens)

    def batch_decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        return self._decode(requests, prompt, tokens)

    def depth(self, context: int, tokens: int) -> dict[str, Any]:
        return self._decode(1, context, tokens)

    def prefill(self, tokens: int) -> dict[str, Any]:
        generator = self._generator(1, tokens + 1)
        ids = self._random(1, tokens)
        return {"seconds": timed(lambda: generator.append_tokens(ids)), "tokens": tokens}

    def _decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        generator = self._generator(requests, prompt + tokens + 1)
        generator.append_tokens(self._random(requests, prompt))
        # The first one only samples: the prompt's logits are there.
        generator.generate_next_token()

        def run() -> None:
            for _ in range(tokens):
                generator.generate_next_token()

        return {"seconds": timed(run), "tokens": requests * tokens}

    def _generator(self, requests: int, length: int) -> Any:
        params = og.GeneratorParams(self._model)
        # No end before its time: an end of text may be the likeliest token.
        params.set_search_options(
            batch_size=requests, max_length=length, min_length=length, do_sample=False
        )
        return og.Generator(self._model, params)

    def _random(self, rows: int, columns: int) -> np.ndarray:
        ids = random_ids(rows * columns, self._vocab_size, self._rng)
        return np.array(ids, np.int32).reshape(rows, columns)


if __name__ == "__main__":
    serve(OnnxRuntime)
