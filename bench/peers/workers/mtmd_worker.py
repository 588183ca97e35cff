"""mtmd, llama.cpp's library for pictures, through llama-cpp-python's C interface."""

import argparse
import ctypes

import llama_cpp as lib
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from pictures import Pictures
from protocol import serve


class Mtmd(Pictures):
    version = f"llama-cpp-python {lib.__version__}"

    def __init__(self, args: argparse.Namespace):
        super().__init__(args)
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            args.text_model.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {args.text_model}")
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads = False, args.threads
        self._context = mtmd.mtmd_init_from_file(args.model.encode(), self._model, params)
        if not self._context:
            raise SystemExit(f"mtmd cannot load {args.model}")
        self._numbers = lib.llama_model_n_embd_inp(self._model)
        self._tokens = 0
        self.flags = f"-t {args.threads}, flash attention auto, else defaults; GGML_NATIVE"

    def _encode(self, pixels: np.ndarray) -> None:
        height, width, _ = pixels.shape
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(width, height, data)
        marker = mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        chunks = mtmd.mtmd_input_chunks_init()
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        try:
            _check(mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1))
            for at in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk = mtmd.mtmd_input_chunks_get(chunks, at)
                if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                    _check(mtmd.mtmd_encode_chunk(self._context, chunk))
                    self._tokens = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _embeddings(self) -> np.ndarray:
        address = mtmd.mtmd_get_output_embd(self._context)
        return np.ctypeslib.as_array(address, (self._tokens, self._numbers)).copy()


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"mtmd returned {status}")


if __name__ == "__main__":
    serve(Mtmd)
