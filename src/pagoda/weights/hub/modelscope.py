"""Models from ModelScope, through its HTTP interface.

`GET /api/v1/models/{repo}/repo/files?Revision=&Recursive=true` lists, `.../repo?FilePath=` sends
a file (redirecting to storage that honours Range). A token goes as Bearer and, for the older
endpoints, as the cookie `m_session_id`.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base import env
from pagoda.base.errors import SourceError
from pagoda.base.log import get_logger
from pagoda.base.whole import put_in_place
from pagoda.base.words import say
from pagoda.weights.choice import Choice, RemoteFile, choose_files
from pagoda.weights.hub.store import Progress, locked, reason_of, sha256_of, writing_to

if TYPE_CHECKING:
    import httpx

_log = get_logger(__name__)

_ENDPOINT = "https://www.modelscope.cn"
_TIMEOUT_SECONDS = 10.0
_ATTEMPTS = 4


def fetch(
    repo: str,
    selector: str | None,
    folder: Path,
    *,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The model's folder or GGUF below `folder`, fetched as far as it is missing.

    Interrupted downloads resume; each file appears under its name once its size and sha256 are
    right. When the site cannot be reached, what is in `folder` is used. Raises SourceError.
    """
    import httpx

    with new_client() as client, locked(folder):
        try:
            choice = choose_files(repo, list_files(client, repo, revision), selector)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            cached = from_folder(repo, selector, folder)
            if cached is None:
                raise SourceError(unreachable(client, repo, error)) from error
            _log.info("%s comes from the cache: %s", repo, reason_of(error))
            return cached
        _log.info("%s", choice.reason)
        for number, file in enumerate(choice.files):
            before = sum(earlier.nbytes for earlier in choice.files[:number])
            report = _offset(progress, choice, before)
            _fetch_file(client, repo, revision, file, folder, report)
    return folder / choice.entry


def _offset(progress: Progress | None, choice: Choice, before: int) -> Progress:
    def report(name: str, done: int, total: int) -> None:
        if progress is not None:
            progress(name, before + done, choice.nbytes)

    return report


def new_client() -> "httpx.Client":
    import httpx

    token = env.get("MODELSCOPE_API_TOKEN")
    headers = {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"}
    return httpx.Client(
        base_url=env.get("MODELSCOPE_ENDPOINT") or _ENDPOINT,
        headers=headers if token else {},
        timeout=_TIMEOUT_SECONDS,
        follow_redirects=True,
    )


def list_files(client: "httpx.Client", repo: str, revision: str | None) -> list[RemoteFile]:
    """The model's files; raises httpx's errors, and SourceError for an unknown model."""
    reply = client.get(
        f"/api/v1/models/{repo}/repo/files",
        params={"Revision": revision or "master", "Recursive": "true"},
    )
    if reply.status_code in (401, 403, 404):
        raise SourceError(
            say(
                "ModelScope knows no model {repo} (revision {revision}), or it is private: check "
                "the name, or set MODELSCOPE_API_TOKEN.",
                repo=repo,
                revision=revision or "master",
            )
        )
    reply.raise_for_status()
    try:
        entries = reply.json()["Data"]["Files"]
        return [_remote_file(entry) for entry in entries if entry["Type"] != "tree"]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{client.base_url} answered the list of {repo} in a form unknown here; is "
            "MODELSCOPE_ENDPOINT right?"
        ) from error


def _remote_file(entry: dict[str, Any]) -> RemoteFile:
    return RemoteFile(str(entry["Path"]), int(entry["Size"]), entry.get("Sha256") or None)


def file_url(repo: str, path: str, revision: str | None) -> tuple[str, dict[str, str]]:
    """Where a file is fetched from: path and query."""
    return f"/api/v1/models/{repo}/repo", {"Revision": revision or "master", "FilePath": path}


def _fetch_file(
    client: "httpx.Client",
    repo: str,
    revision: str | None,
    file: RemoteFile,
    folder: Path,
    report: Progress,
) -> None:
    target = folder / file.path
    if target.is_file() and target.stat().st_size == file.nbytes:
        report(file.path, file.nbytes, file.nbytes)
        return
    part = target.with_name(target.name + ".part")
    url, params = file_url(repo, file.path, revision)
    with writing_to(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(client, url, params, file, part, report)
        _check(file, part)
        put_in_place(part, target)


def _download(
    client: "httpx.Client",
    url: str,
    params: dict[str, str],
    file: RemoteFile,
    part: Path,
    report: Progress,
) -> None:
    """Bring `part` to its full size, going on where an earlier attempt stopped."""
    import httpx

    for attempt in range(_ATTEMPTS):
        try:
            _append(client, url, params, file, part, report)
        except httpx.HTTPError as error:
            if attempt == _ATTEMPTS - 1:
                raise SourceError(unreachable(client, file.path, error)) from error
            time.sleep(2**attempt / 2)
        else:
            return


def _append(
    client: "httpx.Client",
    url: str,
    params: dict[str, str],
    file: RemoteFile,
    part: Path,
    report: Progress,
) -> None:
    done = part.stat().st_size if part.is_file() else 0
    if done == file.nbytes and done:
        return
    if done > file.nbytes:
        done = 0
    # Sizes and ranges are those of the plain file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with client.stream("GET", url, params=params, headers=headers) as reply:
        reply.raise_for_status()
        if reply.status_code != 206:
            done = 0
        with part.open("ab" if done else "wb") as out:
            for chunk in reply.iter_raw():
                out.write(chunk)
                done += len(chunk)
                report(file.path, min(done, file.nbytes), file.nbytes)


def _check(file: RemoteFile, part: Path) -> None:
    """A file of the wrong size or hash is thrown away."""
    size = part.stat().st_size
    if size == file.nbytes and (file.sha256 is None or sha256_of(part) == file.sha256.lower()):
        return
    part.unlink()
    raise SourceError(
        f"{file.path} arrived damaged ({size} bytes of {file.nbytes}, or another sha256) and was "
        "thrown away. Fetch it again."
    )


def from_folder(repo: str, selector: str | None, folder: Path) -> Path | None:
    """What an earlier fetch left, if that was whole."""
    if not folder.is_dir() or any(folder.rglob("*.part")):
        return None
    files = [
        RemoteFile(path.relative_to(folder).as_posix(), path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    try:
        return folder / choose_files(repo, files, selector).entry
    except SourceError:
        return None


def unreachable(client: "httpx.Client", what: str, error: Exception) -> str:
    """One of httpx's errors as a sentence that says what to do."""
    return say(
        "{what} could not be fetched from {endpoint} ({reason}). Check the network, set "
        "MODELSCOPE_ENDPOINT to a mirror, or give the path of a model on this machine.",
        what=what,
        endpoint=client.base_url,
        reason=reason_of(error),
    )
