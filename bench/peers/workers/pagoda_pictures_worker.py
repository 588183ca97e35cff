"""Pagoda's vision tower: what a server and then its engine do with a picture that is decoded."""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from pictures import Pictures
from protocol import serve

from pagoda.base.log import setup_logging
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import MediaItem
from pagoda.engine.startup import start_engine
from pagoda.text.media.select import processor_for
from pagoda.version import __version__
from pagoda.weights.files import open_model


class PagodaPictures(Pictures):
    version = f"pagoda {__version__}"

    def __init__(self, args: argparse.Namespace):
        super().__init__(args)
        setup_logging("warning")
        config = EngineConfig()
        config = replace(
            config,
            model=replace(config.model, model=args.text_model, mmproj=args.model),
            device=replace(config.device, device="cpu", threads=args.threads),
        )
        self._core, _ = start_engine(config, lambda message: None)
        self._processor = processor_for(open_model(Path(args.text_model), args.model), "image")
        self._file = Path(tempfile.mkdtemp(prefix="pagoda-pictures-")) / "picture.npy"
        self.flags = f"-t {args.threads}, else defaults"

    def _encode(self, pixels: np.ndarray) -> None:
        assert self._processor is not None
        (piece,) = self._processor.process(pixels[None]).pieces
        np.save(self._file, piece.values)
        item = MediaItem(piece.content_hash, 0, piece.num_tokens, str(self._file), piece.grid)
        media = self._core.executor.runner.media
        media.forget()
        self._encoded = media.encoded(item)

    def _embeddings(self) -> np.ndarray:
        found: np.ndarray = self._encoded.transpose(0, 1).flatten(1).float().numpy()
        return found


if __name__ == "__main__":
    serve(PagodaPictures)
