"""Models from the Hugging Face hub or a mirror of it, kept in the cache that its tools share.

`huggingface_hub` itself reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE, and resumes.
"""

import errno
import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base import env
from pagoda.base.errors import SourceError
from pagoda.base.log import get_logger
from pagoda.base.words import say
from pagoda.version import __version__
from pagoda.weights.choice import Choice, Listing, RemoteFile, choose_files
from pagoda.weights.hub.store import Progress, reason_of

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo

_log = get_logger(__name__)

_ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class HubModel:
    repo: str
    """The repository's name, `org/name`."""
    selector: str | None = None
    """A file of the repository or a quantization."""
    revision: str | None = None


def fetch(
    model: HubModel,
    *,
    cache_dir: Path | None = None,
    local_dir: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """The model's folder or GGUF, fetched as far as it is missing.

    `cache_dir` stands for the hub's own cache, `local_dir` takes plain files. When the hub cannot
    be reached, what the cache holds is used. Raises SourceError with one line otherwise.
    """
    from huggingface_hub import snapshot_download

    try:
        choice = choose_files(model.repo, list_files(model).files, model.selector)
    except hub_errors() as error:
        cached = None if local_dir else from_cache(model, cache_dir)
        if cached is None:
            raise SourceError(explain(error, model)) from error
        _log.info("%s comes from the cache: %s", model.repo, reason_of(error))
        return cached
    _log.info("%s", choice.reason)
    try:
        folder = snapshot_download(
            model.repo,
            revision=model.revision,
            cache_dir=cache_dir,
            local_dir=local_dir,
            # The names are exact, the parameter wants patterns.
            allow_patterns=[glob.escape(file.path) for file in choice.files],
            etag_timeout=TIMEOUT_SECONDS,
            library_name="pagoda",
            library_version=__version__,
            tqdm_class=_progress_class(choice, progress),
        )
    except hub_errors() as error:
        raise SourceError(explain(error, model)) from error
    return Path(folder) / choice.entry


def list_files(model: HubModel) -> Listing:
    """The model's files; raises `hub_errors`, and SourceError for a name that can be none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        info = HfApi(library_name="pagoda", library_version=__version__).model_info(
            model.repo, revision=model.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )
    except HFValidationError as error:
        raise SourceError(f"{model.repo!r} is no name of a hub model: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        endpoint = env.get("HF_ENDPOINT") or _ENDPOINT
        raise SourceError(
            f"{endpoint} answered the list of {model.repo} in a form unknown here; is HF_ENDPOINT "
            "right, and does no login page stand between?"
        ) from error
    files = tuple(RemoteFile(item.rfilename, item.size or 0) for item in info.siblings or ())
    return Listing(info.sha or "", files)


def cached_models(cache_dir: Path | None = None) -> "list[CachedRepoInfo]":
    """Models in the hub's cache; empty when there is no cache yet."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(cache_dir).repos
    except CacheNotFound:
        return []
    return sorted((r for r in repos if r.repo_type == "model"), key=lambda r: r.repo_id)


def remove(repo: str) -> int:
    """Delete every cached revision of a model; bytes freed, 0 if there was none."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return 0
    hashes = [
        revision.commit_hash
        for cached in cache.repos
        if cached.repo_type == "model" and cached.repo_id == repo
        for revision in cached.revisions
    ]
    strategy = cache.delete_revisions(*hashes)
    strategy.execute()
    return strategy.expected_freed_size


def revision_files(revision: "CachedRevisionInfo") -> list[RemoteFile]:
    root = revision.snapshot_path
    return [
        RemoteFile(file.file_path.relative_to(root).as_posix(), file.size_on_disk)
        for file in revision.files
    ]


def from_cache(model: HubModel, cache_dir: Path | None) -> Path | None:
    """What an earlier fetch of the revision left; shards may be missing from it."""
    wanted = model.revision or "main"
    for cached in cached_models(cache_dir):
        if cached.repo_id != model.repo:
            continue
        for revision in cached.revisions:
            if wanted in revision.refs or wanted == revision.commit_hash:
                try:
                    choice = choose_files(model.repo, revision_files(revision), model.selector)
                except SourceError:
                    return None  # another part of the repository was fetched
                return revision.snapshot_path / choice.entry
    return None


def hub_errors() -> tuple[type[Exception], ...]:
    """Errors of the hub, of the HTTP library below it (which one depends on the release), I/O."""
    from huggingface_hub import errors

    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    return (errors.HfHubHTTPError, http_error, OSError)


def _is_local(error: Exception) -> bool:
    """Whether this machine's disk failed, and not the hub."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


def explain(error: Exception, model: HubModel) -> str:
    """One of `hub_errors` as a sentence that says what to do."""
    from huggingface_hub import errors

    repo = model.repo
    if isinstance(error, errors.GatedRepoError):
        return say(
            "{repo} asks its users to accept a licence: do so on its page, then set HF_TOKEN to "
            "your access token.",
            repo=repo,
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return say("{repo} has no revision {revision!r}.", repo=repo, revision=model.revision)
    if isinstance(error, errors.RepositoryNotFoundError):
        return say(
            "The hub knows no model {repo}, or it is private: check the name, or set HF_TOKEN to "
            "an access token that may read it.",
            repo=repo,
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return say(
            "{repo} is not in the cache, and HF_HUB_OFFLINE forbids asking the hub: unset it, or "
            "give the path of a model on this machine.",
            repo=repo,
        )
    if _is_local(error):
        return say(
            "{repo} cannot be stored: {error}. Free some space, or set HF_HOME to another folder.",
            repo=repo,
            error=error,
        )
    endpoint = env.get("HF_ENDPOINT") or _ENDPOINT
    return say(
        "{repo} could not be fetched from {endpoint} ({reason}). Check the network, set "
        "HF_ENDPOINT to a mirror, or give the path of a model on this machine.",
        repo=repo,
        endpoint=endpoint,
        reason=reason_of(error),
    )


def _progress_class(choice: Choice, progress: Progress | None) -> Any:
    """A silent stand-in for the library's progress bars that tells `progress` instead."""
    from huggingface_hub.utils.tqdm import tqdm

    class Reporter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any):
            # Of the library's three bars this one counts bytes of files, resumed ones included.
            self._counts = kwargs.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # tqdm has no types

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts and progress is not None:
                total = choice.nbytes
                progress(choice.entry or "model", min(int(self.n), total), total)

    return Reporter
