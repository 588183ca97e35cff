"""llama.cpp through llama-cpp-python's C interface, measured as its own llama-bench and
llama-batched-bench do: random tokens, no sampling."""

import argparse
import ctypes
from typing import Any

import llama_cpp as lib
import numpy as np
from protocol import divergence, random_ids, serve, timed

_BATCH = 2048


class LlamaCpp:
    version = f"llama-cpp-python {lib.__version__}"

    def __init__(self, args: argparse.Namespace):
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            args.model.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {args.model}")
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._threads = args.threads
        self._rng = np.random.default_rng(0)
        self._deep: dict[int, Any] = {}
        system = lib.llama_print_system_info().decode()
        self.flags = (
            f"-t {args.threads} -b {_BATCH} -ub 512, flash attention auto, KV f16, mmap, "
            f"GGML_NATIVE; {system.strip()}"
        )

    def decode(self, tokens: int) -> dict[str, Any]:
        context = self._context(tokens)
        seconds = timed(lambda: self._generate(context, tokens))
        lib.llama_free(context)
        return {"seconds": seconds, "tokens": tokens}

    def prefill(self, tokens: int) -> dict[str, Any]:
        context = self._context(tokens)
        seconds = timed(lambda: self._read(context, self._random(tokens)))
        lib.llama_free(context)
        return {"seconds": seconds, "tokens": tokens}

    def batch_decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        context = self._context(requests * (prompt + tokens), requests)
        for request in range(requests):
            self._submit(context, [(id_, i, request) for i, id_ in enumerate(self._random(prompt))])

        def run() -> None:
            for step in range(tokens):
                ids = self._random(requests)
                rows = [(id_, prompt + step, request) for request, id_ in enumerate(ids)]
                self._submit(context, rows, every=True)

        seconds = timed(run)
        lib.llama_free(context)
        return {"seconds": seconds, "tokens": requests * tokens}

    def depth(self, context: int, tokens: int) -> dict[str, Any]:
        """Tokens behind `context` cached ones, which are read once and kept."""
        if context not in self._deep:
            self._deep[context] = self._context(context + tokens)
            self._read(self._deep[context], self._random(context))
        deep = self._deep[context]
        seconds = timed(lambda: self._generate(deep, tokens))
        lib.llama_memory_seq_rm(lib.llama_get_memory(deep), 0, context, -1)
        return {"seconds": seconds, "tokens": tokens}

    def divergence(self, ids: list[int], reference: str) -> dict[str, Any]:
        context = self._context(len(ids))
        self._submit(context, [(id_, i, 0) for i, id_ in enumerate(ids)], every=True)
        address = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, (len(ids), self._vocab_size)).copy()
        lib.llama_free(context)
        return divergence(reference, logits)

    def _context(self, tokens: int, requests: int = 1) -> Any:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = tokens, _BATCH, requests
        params.n_outputs_max_per_seq = params.n_outputs_max = _BATCH
        params.n_threads = params.n_threads_batch = self._threads
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise MemoryError(f"llama.cpp cannot make a context of {tokens} tokens")
        return context

    def _random(self, count: int) -> list[int]:
        return random_ids(count, self._vocab_size, self._rng)

    def _generate(self, context: Any, tokens: int) -> None:
        for id_ in self._random(tokens):
            self._read(context, [id_])

    def _read(self, context: Any, ids: list[int]) -> None:
        """Behind what is cached; logits of the last token."""
        for start in range(0, len(ids), _BATCH):
            part = ids[start : start + _BATCH]
            array = (lib.llama_token * len(part))(*part)
            _check(lib.llama_decode(context, lib.llama_batch_get_one(array, len(part))))
        lib.llama_synchronize(context)

    def _submit(self, context: Any, rows: list[tuple[int, int, int]], every: bool = False) -> None:
        """Rows of (id, position, request); logits of the last one, or of every one."""
        batch = lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (id_, position, request) in enumerate(rows):
            batch.token[i], batch.pos[i] = id_, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, request
            batch.logits[i] = every or i == len(rows) - 1
        _check(lib.llama_decode(context, batch))
        lib.llama_synchronize(context)
        lib.llama_batch_free(batch)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"llama_decode returned {status}")


if __name__ == "__main__":
    serve(LlamaCpp)
