"""Answers a file of OpenAI batch requests: many at once, resumable, one output line each.

Input lines: {"custom_id", "method": "POST", "url": "/v1/...", "body"}. Output lines, in the order
they finish: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}.
https://platform.openai.com/docs/api-reference/batch
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx

from pagoda.base.errors import ConfigError
from pagoda.base.whole import whole_file
from pagoda.bench.sse import ServerError, error_message, transport_message

_ATTEMPTS = 6
_FIRST_PAUSE = 0.25
_RETRIED = (429, 503)
# What is looked at to tell a file of requests from any other.
_LOOKED_AT = 4096
_FIRST_LINES = 10


@dataclass(frozen=True)
class BatchRequest:
    record_id: str
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    """Why the line cannot be sent."""


@dataclass
class Tally:
    total: int = 0
    answered: int = 0
    failed: int = 0
    skipped: int = 0
    """Answered by an earlier run."""

    @property
    def done(self) -> int:
        return self.answered + self.failed + self.skipped


class BadLineError(ValueError):
    """An input line that is no batch request; the message says why."""


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """Every line that is not blank, the unusable ones with their problem."""
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record_id, custom_id = f"batch_req_{number}", None
            try:
                entry = _read_object(line)
                custom_id = _custom_id(entry)
                if custom_id in seen:
                    raise BadLineError(f"custom_id {custom_id!r} occurs twice.")
                seen.add(custom_id)
                url, body = _request(entry)
            except BadLineError as error:
                problem = f"Line {number}: {error}"
                yield BatchRequest(record_id, custom_id, problem=problem)
            else:
                yield BatchRequest(record_id, custom_id, url, body)


def check_source(path: Path) -> None:
    """Raises ConfigError for a file that is clearly none of batch requests, before the cost of
    a model and an output full of errors."""
    try:
        with path.open("rb") as file:
            start = file.read(_LOOKED_AT)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    if b"\0" in start:
        raise ConfigError(f"{path} is not text; write one batch request as JSON on each line.")
    problems = [req.problem for req in itertools.islice(read_requests(path), _FIRST_LINES)]
    if problems and all(problems):
        count = "its only line" if len(problems) == 1 else f"any of its first {len(problems)} lines"
        raise ConfigError(f"{path} has no batch request on {count}. {problems[0]}")


def check_target(path: Path) -> None:
    """Raises ConfigError where no output can be written; an empty file is there afterwards."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_done(path: Path) -> set[str]:
    """Custom ids that an earlier run's output answers; every other line leaves the file.

    Those failed, or were only half written, and are asked again. Raises ConfigError for a file
    that is no batch output, and leaves it as it is.
    """
    if not path.exists():
        return set()
    answered: set[str] = set()
    lines = 0
    with path.open("rb") as file:
        for line in file:
            lines += 1
            custom_id = _answered(line, path)
            if custom_id is not None:
                answered.add(custom_id)
    if len(answered) < lines:
        _keep_answered(path.resolve())
    return answered


def _answered(line: bytes, path: Path) -> str | None:
    """The custom id of an output line whose request succeeded, else None."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
        custom_id, error, response = record["custom_id"], record["error"], record["response"]
        succeeded = error is None and response["status_code"] < httpx.codes.BAD_REQUEST
    except (ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} exists and is not a batch output file.") from problem
    return str(custom_id) if succeeded else None


def _keep_answered(path: Path) -> None:
    """Rewrite it in one step, so that an interrupt here loses nothing."""
    kept: set[str] = set()
    with path.open("rb") as file, whole_file(path) as out:
        for line in file:
            custom_id = _answered(line, path)
            if custom_id is not None and custom_id not in kept:
                kept.add(custom_id)
                out.write(line)


async def run_batch(
    client: httpx.AsyncClient,
    source: Path,
    target: Path,
    *,
    concurrency: int,
    progress: Callable[[int, int], None],
) -> Tally:
    """Answer what `target` does not have yet. `client` has the server as its base URL.

    Raises ServerError when the server is gone; what is answered by then stays.
    """
    answered = read_done(target)
    tally = Tally(total=sum(1 for _ in read_requests(source)))
    requests = read_requests(source)
    with target.open("a", encoding="utf-8") as out:

        async def work() -> None:
            for req in requests:
                if req.problem is None and req.custom_id in answered:
                    tally.skipped += 1
                else:
                    await _answer(client, req, out, tally)
                progress(tally.done, tally.total)

        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, concurrency)):
                group.create_task(work())
    return tally


async def _answer(client: httpx.AsyncClient, req: BatchRequest, out: TextIO, tally: Tally) -> None:
    if req.problem is not None:
        record = _record(req, error={"code": "invalid_request", "message": req.problem})
        tally.failed += 1
    else:
        response = await _send(client, req)
        record = _record(req, response=_response(response))
        if response.is_success:
            tally.answered += 1
        else:
            tally.failed += 1
    out.write(json.dumps(record, ensure_ascii=False) + "\n")
    out.flush()


async def _send(client: httpx.AsyncClient, req: BatchRequest) -> httpx.Response:
    """Post it; a server that is full or restarting is asked again for about 8 s."""
    pause, trouble = _FIRST_PAUSE, ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(pause)
            pause *= 2
        try:
            response = await client.post(req.url, json=req.body)
        except httpx.TransportError as error:
            trouble = transport_message(error, str(client.base_url))
            continue
        if response.status_code not in _RETRIED:
            return response
        trouble = error_message(response)
    raise ServerError(f"{trouble} The same command goes on from here later.")


def _response(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = {"error": {"message": response.text, "code": response.status_code}}
    request_id = response.headers.get("x-request-id") or body.get("id") or ""
    return {"status_code": response.status_code, "request_id": request_id, "body": body}


def _record(
    req: BatchRequest,
    *,
    response: dict[str, Any] | None = None,
    error: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "id": req.record_id,
        "custom_id": req.custom_id,
        "response": response,
        "error": error,
    }


def _read_object(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BadLineError(f"not JSON: {error}.") from error
    if not isinstance(entry, dict):
        raise BadLineError("not a JSON object.")
    return entry


def _custom_id(entry: dict[str, Any]) -> str:
    custom_id = entry.get("custom_id")
    if not isinstance(custom_id, str):
        raise BadLineError("custom_id must be a string.")
    return custom_id


def _request(entry: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    method, url, body = entry.get("method", "POST"), entry.get("url"), entry.get("body")
    if method != "POST":
        raise BadLineError(f"method is {method!r}; it must be POST.")
    if not isinstance(url, str) or not url.startswith("/v1/"):
        raise BadLineError(f"url is {url!r}; write a path such as /v1/chat/completions.")
    if not isinstance(body, dict):
        raise BadLineError("body must be an object.")
    if body.get("stream"):
        raise BadLineError("a batch request cannot be streamed; leave stream out.")
    return url, body
