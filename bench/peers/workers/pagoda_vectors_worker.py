"""Pagoda's vectors, stepped in this process, from texts on."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from protocol import serve, timed

from pagoda.base.log import setup_logging
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import AddRequest, PoolingParams
from pagoda.engine.served.text_side import tokenizer_of
from pagoda.engine.startup import start_engine
from pagoda.version import __version__
from pagoda.weights.files import open_model


class PagodaVectors:
    version = f"pagoda {__version__}"

    def __init__(self, args: argparse.Namespace):
        setup_logging("warning")
        config = EngineConfig()
        config = replace(
            config,
            model=replace(config.model, model=args.model),
            device=replace(config.device, device="cpu", threads=args.threads),
        )
        self._core, ready = start_engine(config, lambda message: None)
        self._length = ready.max_model_len
        self._tokenizer = tokenizer_of(config.model, open_model(Path(args.model)))
        self.flags = f"-t {args.threads}, else defaults"

    def vectors(self, texts: list[str]) -> dict[str, Any]:
        found: dict[str, np.ndarray] = {}
        seconds = timed(lambda: self._encode(texts, found))
        first = found["0"] / np.linalg.norm(found["0"])
        return {"seconds": seconds, "vector": first.tolist()}

    def _encode(self, texts: list[str], found: dict[str, np.ndarray]) -> None:
        for i, text in enumerate(texts):
            ids = self._tokenizer.encode(text)[: self._length]
            self._core.handle(
                AddRequest(
                    req_id=str(i), prompt_token_ids=ids, kind="pool",
                    pooling=PoolingParams("embed"),
                )
            )  # fmt: skip
        while self._core.has_work():
            for delta in self._core.step():
                assert delta.embedding is not None
                found[delta.req_id] = np.frombuffer(delta.embedding, np.float32)


if __name__ == "__main__":
    serve(PagodaVectors)
