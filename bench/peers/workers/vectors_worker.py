"""sentence-transformers, on PyTorch or on onnxruntime, which it exports the model for. fp32."""

import argparse
from importlib.metadata import version
from typing import Any

import torch
from protocol import serve, timed
from sentence_transformers import SentenceTransformer


class Vectors:
    def __init__(self, args: argparse.Namespace):
        torch.set_num_threads(args.threads)
        options: dict[str, Any] = {}
        if args.backend == "onnx":
            import onnxruntime

            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = args.threads
            options = {"provider": "CPUExecutionProvider", "session_options": settings}
        self._model = SentenceTransformer(
            args.model, device="cpu", backend=args.backend, model_kwargs=options
        )
        packages = ["sentence-transformers", "onnxruntime" if options else "torch"]
        self.version = ", ".join(f"{name} {version(name)}" for name in packages)
        self.flags = f"backend={args.backend}, {args.threads} threads, batches of 32 by length"

    def vectors(self, texts: list[str]) -> dict[str, Any]:
        found: list[Any] = []
        seconds = timed(
            lambda: found.append(
                self._model.encode(texts, batch_size=32, normalize_embeddings=True)
            )
        )
        return {"seconds": seconds, "vector": found[0][0].tolist()}


if __name__ == "__main__":
    serve(Vectors)
