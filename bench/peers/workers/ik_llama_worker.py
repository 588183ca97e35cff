"""ik_llama.cpp through the library that `bench/peers/ik_llama.py` builds of its sources."""

import argparse
import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_uint32, c_void_p
from typing import Any

import numpy as np
from llama_bench import BATCH, LlamaBench, check
from protocol import serve

_SIGNATURES = {
    "ik_load": (c_void_p, (c_char_p, c_bool)),
    "ik_vocab_size": (c_int32, (c_void_p,)),
    "ik_system": (c_char_p, ()),
    "ik_context": (c_void_p, (c_void_p, c_uint32, c_uint32, c_uint32, c_uint32)),
    "ik_free": (None, (c_void_p,)),
    "ik_decode": (
        c_int32,
        (c_void_p, c_int32, POINTER(c_int32), POINTER(c_int32), POINTER(c_int32), POINTER(c_int8)),
    ),
    "ik_forget": (None, (c_void_p, c_int32)),
    "ik_logits": (POINTER(c_float), (c_void_p,)),
}


class IkLlama(LlamaBench):
    def __init__(self, args: argparse.Namespace):
        self._lib = lib = ctypes.CDLL(args.library)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self._model = lib.ik_load(args.model.encode(), args.repack)
        if not self._model:
            raise SystemExit(f"ik_llama.cpp cannot load {args.model}")
        super().__init__(args, lib.ik_vocab_size(self._model))
        self.version = args.library_version
        self.flags = (
            f"-t {args.threads} -b {BATCH} -ub 512 {'-rtr' if args.repack else ''}, flash "
            f"attention, KV f16, GGML_NATIVE; {lib.ik_system().decode().strip()}"
        )

    def _new_context(self, tokens: int, requests: int) -> Any:
        return self._lib.ik_context(self._model, tokens, requests, BATCH, self._threads)

    def _free(self, context: Any) -> None:
        self._lib.ik_free(context)

    def _read(self, context: Any, ids: list[int], start: int) -> None:
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        wanted = np.zeros(len(ids), np.int8)
        wanted[-1] = 1
        self._decode(context, np.array(ids), positions, np.zeros_like(positions), wanted)

    def _submit(self, context: Any, rows: list[tuple[int, int, int]], every: bool = False) -> None:
        ids, positions, requests = np.array(rows).T
        wanted = np.full(len(rows), every)
        wanted[-1] = True
        self._decode(context, ids, positions, requests, wanted)

    def _decode(self, context: Any, *columns: np.ndarray) -> None:
        types = (np.int32, np.int32, np.int32, np.int8)
        arrays = [
            np.ascontiguousarray(column, dtype)
            for column, dtype in zip(columns, types, strict=True)
        ]
        pointers = [np.ctypeslib.as_ctypes(array) for array in arrays]
        check(self._lib.ik_decode(context, len(arrays[0]), *pointers))

    def _forget(self, context: Any, start: int) -> None:
        self._lib.ik_forget(context, start)

    def _logits(self, context: Any, rows: int) -> np.ndarray:
        address = self._lib.ik_logits(context)
        return np.ctypeslib.as_array(address, (rows, self._vocab_size)).copy()


if __name__ == "__main__":
    serve(IkLlama)
