"""The process that reads, writes and searches files for one call.

It is a process of its own because a regular expression, a file system or a huge tree may take any
time: it is killed then, and the server has not noticed. It imports little, to be there soon.
A job comes as JSON on standard input, its answer goes as JSON to standard output.
"""

import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from typing import Any

from pagoda.server.filetools.files import edit_file, read_file, write_file
from pagoda.server.filetools.paths import RefusedError, resolved
from pagoda.server.filetools.search import file_glob_search, grep_search

_MEMORY = 1024**3
_WORK: dict[str, Callable[..., dict[str, Any]]] = {
    "read_file": read_file,
    "write_file": write_file,
    "edit_file": edit_file,
    "file_glob_search": file_glob_search,
    "grep_search": grep_search,
}


def answer(tool: str, params: dict[str, Any], cwd: str) -> dict[str, Any]:
    """What the model is told; under `error` where it does not work."""
    if tool == "get_info":
        return {"os": platform.platform(), "cwd": cwd}
    named = params.pop("path")
    try:
        return _WORK[tool](resolved(named, cwd), **params)
    except RefusedError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{error.filename or named}: {error.strerror}."}
    except MemoryError:
        return {"error": f"{tool} needs more than {_MEMORY >> 20} MiB for this; ask for less."}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    told = json.dumps(answer(**json.load(sys.stdin)), ensure_ascii=False)
    # A name on a disk may be no UTF-8.
    with os.fdopen(1, "wb") as out:
        out.write(told.encode(errors="surrogateescape"))


if __name__ == "__main__":
    main()
