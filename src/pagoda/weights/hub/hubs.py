"""The hubs as `weights.hub.ranges.Hub`."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pagoda.version import __version__
from pagoda.weights.choice import Choice, Listing
from pagoda.weights.hub import huggingface, modelscope
from pagoda.weights.hub.huggingface import HubModel


class HuggingFace:
    """The Hugging Face hub or a mirror, through its own library's session: proxies, tokens and
    HF_HUB_OFFLINE work as they do for downloads, and no token follows to another host."""

    def __init__(self, model: HubModel, cache_dir: Path | None):
        self.name = model.repo
        self.errors = huggingface.hub_errors()
        self._model = model
        self._cache_dir = cache_dir

    def listing(self) -> Listing:
        return huggingface.list_files(self._model)

    def pulled(self, commit: str, choice: Choice) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        snapshot = None
        for file in choice.files:
            found = try_to_load_from_cache(self.name, file.path, self._cache_dir, commit)
            if not isinstance(found, str):
                return None
            snapshot = Path(found).parents[len(PurePosixPath(file.path).parts) - 1]
        return snapshot / choice.entry if snapshot else None

    def pulled_before(self) -> Path | None:
        return huggingface.from_cache(self._model, self._cache_dir)

    @contextlib.contextmanager
    def stream(self, commit: str, path: str, headers: Mapping[str, str]) -> Iterator[Any]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # its __all__ is lazy
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = hf_hub_url(self.name, path, revision=commit)
        own = build_hf_headers(library_name="pagoda", library_version=__version__)
        with get_session().stream(
            "GET",
            url,
            headers={**own, **headers},
            timeout=huggingface.TIMEOUT_SECONDS,
            follow_redirects=True,
        ) as reply:
            hf_raise_for_status(reply)
            yield reply

    def explain(self, error: Exception) -> str:
        return huggingface.explain(error, self._model)


class ModelScope:
    """ModelScope or a mirror of it; `close` when done."""

    def __init__(self, model: HubModel, folder: Path):
        import httpx

        self.name = model.repo
        self.errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL)
        self._model = model
        self._folder = folder
        self._client = modelscope.new_client()

    def listing(self) -> Listing:
        """It names no commit: sizes and hashes of the files stand for one."""
        files = modelscope.list_files(self._client, self.name, self._model.revision)
        stated = sorted((file.path, file.nbytes, file.sha256 or "") for file in files)
        return Listing(hashlib.sha256(repr(stated).encode()).hexdigest(), tuple(files))

    def pulled(self, commit: str, choice: Choice) -> Path | None:
        places = [(self._folder / file.path, file.nbytes) for file in choice.files]
        whole = all(path.is_file() and path.stat().st_size == size for path, size in places)
        return self._folder / choice.entry if whole else None

    def pulled_before(self) -> Path | None:
        return modelscope.from_folder(self.name, self._model.selector, self._folder)

    @contextlib.contextmanager
    def stream(self, commit: str, path: str, headers: Mapping[str, str]) -> Iterator[Any]:
        url, params = modelscope.file_url(self.name, path, self._model.revision)
        with self._client.stream("GET", url, params=params, headers=dict(headers)) as reply:
            reply.raise_for_status()
            yield reply

    def explain(self, error: Exception) -> str:
        return modelscope.unreachable(self._client, self.name, error)

    def close(self) -> None:
        self._client.close()
