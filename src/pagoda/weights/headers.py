"""Headers of weight files without the weights: sparse files, full size, zeros behind the header."""

from pathlib import Path

from pagoda.base.errors import CheckpointError, SourceError
from pagoda.base.units import format_bytes
from pagoda.base.whole import whole_file
from pagoda.weights.gguf.checkpoint import read_header
from pagoda.weights.gguf.header import Cursor, CutShortError
from pagoda.weights.hub.ranges import RemoteBytes
from pagoda.weights.jsonfile import check_size, parse_json, parse_value
from pagoda.weights.safetensors import INDEX_NAME, header_end

# One request is enough for most shards, whose entries take some 100 bytes a tensor.
_SAFETENSORS_START = 1 << 16
# Tokens and merges lie in a GGUF's header: 2 MiB for 49,152 tokens, 5 to 20 for 150,000 and more.
_GGUF_START = 1 << 21
_MAX_GGUF_HEADER = 1 << 26
# What planning reads besides weights: configs of the model, its modules, its tokenizer (an
# encoder's longest input stands there) and its images.
_CONFIGS = ("config.json", "modules.json", INDEX_NAME)


def is_planned_with(path: str) -> bool:
    """Whether planning reads a file of a model, or its header."""
    return path.endswith((".safetensors", *_CONFIGS)) or _is_gguf(path)


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def fetch_header(remote: RemoteBytes) -> bytearray:
    """What planning reads of a file: its first bytes. SourceError where they cannot be had,
    CheckpointError for a GGUF or safetensors file that is broken or hostile."""
    if remote.path.suffix == ".safetensors":
        return _safetensors_header(remote)
    if _is_gguf(remote.path.name):
        return _gguf_header(remote)
    check_size(remote.path, remote.size)
    return remote.read(0, remote.size)


def keep_header(remote: RemoteBytes, head: bytearray, target: Path) -> None:
    """Write a file of the true size; CheckpointError for JSON that is none, SourceError where the
    file system cannot hold it, and then nothing is written."""
    # What is broken must not stay in the cache.
    if target.suffix == ".safetensors":
        parse_json(head[8:], f"The header of {remote.path}")
    elif target.suffix == ".json":
        parse_value(head, str(remote.path))
    _write_sparse(target, head, remote.size)


def _safetensors_header(remote: RemoteBytes) -> bytearray:
    head = remote.read(0, min(_SAFETENSORS_START, remote.size))
    end = header_end(remote.path, head, remote.size)
    head += remote.read(len(head), end)
    del head[end:]
    return head


def _gguf_header(remote: RemoteBytes) -> bytearray:
    head = bytearray()
    wanted = _GGUF_START
    while True:
        head += remote.read(len(head), min(wanted, remote.size))
        cursor = Cursor(remote.path, head)
        try:
            read_header(cursor)
        except CutShortError:
            if wanted >= remote.size:
                raise
        else:
            del head[cursor.offset :]
            return head
        if wanted >= _MAX_GGUF_HEADER:
            raise CheckpointError(
                f"{remote.path} is no usable GGUF: its header does not end within "
                f"{format_bytes(_MAX_GGUF_HEADER)}."
            )
        wanted *= 2


def _write_sparse(target: Path, head: bytearray, size: int) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            file.write(head)
            file.truncate(size)
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(
            f"{target.parent} cannot hold the header of {target.name} ({reason}). It becomes a "
            f"sparse file of {format_bytes(size)} that takes {format_bytes(len(head))} on disk; "
            "name a folder on a file system that has such files with the variable PAGODA_CACHE."
        ) from error
