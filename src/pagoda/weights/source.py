"""What a model reference means, and how it becomes files on this machine."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pagoda.base.errors import SourceError
from pagoda.base.log import get_logger
from pagoda.base.near import nearest
from pagoda.base.words import say
from pagoda.weights.choice import RemoteFile, choose_files, is_gguf_model
from pagoda.weights.files import has_safetensors
from pagoda.weights.hub import huggingface, modelscope, wheel
from pagoda.weights.hub.store import Progress, models_dir

log = get_logger(__name__)

_REPO = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)
_SUFFIXES = (".gguf", ".safetensors")
_PREFIXES: dict[str, Literal["hf", "modelscope"]] = {"hf:": "hf", "modelscope:": "modelscope"}

# Who publishes models of such names: tutorials often leave it out.
_PUBLISHERS = {
    "qwen": "Qwen", "gemma-": "google", "gpt-oss-": "openai", "llama-": "meta-llama",
    "deepseek-": "deepseek-ai", "mistral-": "mistralai", "ministral-": "mistralai",
    "phi-": "microsoft", "granite-": "ibm-granite", "smollm": "HuggingFaceTB",
}  # fmt: skip


@dataclass(frozen=True)
class ModelRef:
    kind: Literal["local", "alias", "hf", "modelscope"]
    name: str
    """The path, the alias, or `org/name`."""
    selector: str | None = None
    """A file or quantization of a hub model or of a folder."""


def parse_ref(ref: str) -> ModelRef:
    """Read a reference; raises SourceError when it can mean nothing.

    Aliases come first, then what exists on this machine, then the hub, where a well-known name
    stands for its publisher's model.
    """
    for prefix, kind in _PREFIXES.items():
        if ref.startswith(prefix):
            return _hub_ref(kind, ref.removeprefix(prefix), ref)
    if ref in wheel.ALIASES:
        return ModelRef("alias", ref)
    path = Path(ref).expanduser()
    if ref and path.exists():
        return ModelRef("local", str(path))
    folder, _, selector = str(path).rpartition(":")
    if folder and selector and Path(folder).is_dir():
        return ModelRef("local", folder, selector)
    looks_local = ref.startswith(("/", "./", "../", "~")) or ref.endswith(("/", *_SUFFIXES))
    if "/" in ref and (":" in ref or not looks_local):
        return _hub_ref("hf", ref, ref)
    publisher = _publisher(ref)
    if publisher and not looks_local:
        return _hub_ref("hf", f"{publisher}/{ref}", ref)
    raise SourceError(_unknown(ref))


def resolve_model(
    ref: str,
    *,
    download_dir: str | Path | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The file or folder that `ref` means, downloaded first if it is not here yet.

    `download_dir` replaces the caches. Raises SourceError with one line that says what to do.
    """
    model = parse_ref(ref)
    base = Path(download_dir).expanduser() if download_dir else None
    if model.kind == "local":
        return _in_folder(Path(model.name), model.selector)
    if model.kind == "alias":
        # A folder of its own, since the sampling defaults beside the model are for it alone.
        folder = (base or models_dir()) / model.name
        return wheel.fetch(wheel.ALIASES[model.name], folder, progress)
    if model.kind == "modelscope":
        folder = modelscope_dir(model.name, base)
        return modelscope.fetch(
            model.name, model.selector, folder, revision=revision, progress=progress
        )
    hub_model = huggingface.HubModel(model.name, model.selector, revision)
    return huggingface.fetch(hub_model, cache_dir=base, progress=progress)


def find_model(
    ref: str, *, download_dir: str | Path | None = None, revision: str | None = None
) -> Path | None:
    """The file or folder that `ref` means where it is on this machine; nothing is fetched."""
    try:
        model = parse_ref(ref)
        base = Path(download_dir).expanduser() if download_dir else None
        if model.kind == "local":
            return _in_folder(Path(model.name), model.selector)
        if model.kind == "alias":
            folder, known = (base or models_dir()) / model.name, wheel.ALIASES[model.name]
            return known.entry(folder) if known.is_in(folder) else None
        if model.kind == "modelscope":
            folder = modelscope_dir(model.name, base)
            return modelscope.from_folder(model.name, model.selector, folder)
        hub_model = huggingface.HubModel(model.name, model.selector, revision)
        return huggingface.from_cache(hub_model, base)
    except SourceError:
        return None


def _in_folder(path: Path, selector: str | None) -> Path:
    """The GGUF of a folder that is meant, where it holds several or one was asked for."""
    if not path.is_dir():
        return path
    ggufs = [file for pattern in ("*.gguf", "*/*.gguf") for file in path.glob(pattern)]
    models = [file for file in ggufs if is_gguf_model(file.name)]
    if selector is None and (len(models) < 2 or has_safetensors(path)):
        return path
    files = [RemoteFile(file.relative_to(path).as_posix(), file.stat().st_size) for file in models]
    choice = choose_files(str(path), files, selector)
    # Chosen for its user, who may have meant another: also where only warnings are shown.
    log.log(logging.INFO if selector else logging.WARNING, "%s", choice.reason)
    return path / choice.entry


def modelscope_dir(repo: str, base: Path | None = None) -> Path:
    return (base or models_dir()) / "modelscope" / repo


def _hub_ref(kind: Literal["hf", "modelscope"], text: str, ref: str) -> ModelRef:
    name, _, selector = text.partition(":")
    if not _REPO.fullmatch(name) or (":" in text and not selector):
        raise SourceError(f"{ref!r} is no hub model; write org/name or org/name:QUANT.")
    return ModelRef(kind, name, selector or None)


def _publisher(ref: str) -> str | None:
    """The publisher of a hub model that is named without one, as `Qwen3-8B`."""
    name = ref.partition(":")[0].lower()
    if "-" not in name or "/" in name:
        return None
    return next((who for start, who in _PUBLISHERS.items() if name.startswith(start)), None)


def _unknown(ref: str) -> str:
    aliases = ", ".join(wheel.ALIASES)
    close = nearest(ref, wheel.ALIASES)
    if close:
        return say(
            "There is no file or folder {ref!r} here, and it is no alias ({aliases}). Did you mean "
            "{close!r}? Models of the hub are written org/name or hf:org/name.",
            ref=ref,
            aliases=aliases,
            close=close,
        )
    return say(
        "There is no file or folder {ref!r} here, and it is no alias ({aliases}). Models of the "
        "hub are written org/name or hf:org/name.",
        ref=ref,
        aliases=aliases,
    )
