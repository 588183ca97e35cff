"""llama.cpp through llama-cpp-python's C interface."""

import argparse
import ctypes
from typing import Any

import llama_cpp as lib
import numpy as np
from llama_bench import BATCH, LlamaBench, check
from protocol import serve


class LlamaCpp(LlamaBench):
    version = f"llama-cpp-python {lib.__version__}"

    def __init__(self, args: argparse.Namespace):
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            args.model.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {args.model}")
        super().__init__(args, lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        system = lib.llama_print_system_info().decode()
        self.flags = (
            f"-t {args.threads} -b {BATCH} -ub 512, flash attention auto, KV f16, mmap, "
            f"GGML_NATIVE; {system.strip()}"
        )

    def _new_context(self, tokens: int, requests: int) -> Any:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = tokens, BATCH, requests
        params.n_outputs_max_per_seq = params.n_outputs_max = BATCH
        params.n_threads = params.n_threads_batch = self._threads
        return lib.llama_init_from_model(self._model, params)

    def _free(self, context: Any) -> None:
        lib.llama_free(context)

    def _read(self, context: Any, ids: list[int], start: int) -> None:
        # Positions go on where the context's end.
        array = (lib.llama_token * len(ids))(*ids)
        check(lib.llama_decode(context, lib.llama_batch_get_one(array, len(ids))))
        lib.llama_synchronize(context)

    def _submit(self, context: Any, rows: list[tuple[int, int, int]], every: bool = False) -> None:
        batch = lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (id_, position, request) in enumerate(rows):
            batch.token[i], batch.pos[i] = id_, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, request
            batch.logits[i] = every or i == len(rows) - 1
        check(lib.llama_decode(context, batch))
        lib.llama_synchronize(context)
        lib.llama_batch_free(batch)

    def _forget(self, context: Any, start: int) -> None:
        lib.llama_memory_seq_rm(lib.llama_get_memory(context), 0, start, -1)

    def _logits(self, context: Any, rows: int) -> np.ndarray:
        address = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, (rows, self._vocab_size)).copy()


if __name__ == "__main__":
    serve(LlamaCpp)
