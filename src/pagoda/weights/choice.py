"""Which files of a repository or folder make the model that was asked for."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pagoda.base.errors import SourceError
from pagoda.base.units import format_bytes
from pagoda.base.words import say

# The quantization in a GGUF's name: `-Q4_K_M`, `.IQ2_XXS`, `-UD-Q3_K_XL`, `-BF16`, `-MXFP4_MOE`.
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|FP16|F32|MXFP4\w*|NVFP4\w*))(?=[-./]|$)",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
_PREFERRED = ("Q4_K_M", "Q8_0")
# Other files that a choice names; repositories have up to 30.
_NAMED = 5
_PROJECTORS = ("F16", "BF16", "Q8_0", "F32")
# Everything a Hugging Face model may need besides its weights; never pickles (.bin, .pt).
_COMPANIONS = (".json", ".jinja", ".txt", ".model")
TEKKEN, TIKTOKEN = "tekken.json", "tiktoken.model"
VOCABULARIES = ("tokenizer.json", TEKKEN, TIKTOKEN)
"""Files of which one makes a folder's tokenizer."""

# sentence-transformers' modules: `1_Pooling/config.json`, `2_Dense/model.safetensors`.
_MODULE = re.compile(r"\d+_\w+/config\.json|\d+_Dense/model\.safetensors", re.ASCII)


@dataclass(frozen=True)
class RemoteFile:
    path: str
    """Relative to the repository, with slashes."""
    nbytes: int
    sha256: str | None = None


@dataclass(frozen=True)
class Listing:
    """A repository's files at one commit."""

    commit: str
    """Names this state of the repository; another state has another name."""
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Choice:
    files: tuple[RemoteFile, ...]
    entry: str
    """Path of the file to open; empty when the folder itself is the model."""
    reason: str
    """What was chosen and why, as a sentence for the log."""

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def choose_files(repo: str, files: Iterable[RemoteFile], selector: str | None) -> Choice:
    """Pick one model out of a repository's files.

    `selector` is a file name, also that of a vision tower alone, or a quantization. Without one,
    safetensors win; else of several GGUFs Q4_K_M, else Q8_0, else the smallest. Raises SourceError
    when nothing fits.
    """
    files = [file for file in files if _is_safe(file.path)]
    ggufs = _gguf_models(files)
    if selector is not None:
        projector = _projector(files, selector)
        if projector is not None:
            return _gguf_choice(repo, (projector,), "as asked for")
        return _with_projector(_selected(repo, ggufs, selector), files)
    folder = _safetensors_model(files)
    if folder:
        total = format_bytes(sum(file.nbytes for file in folder))
        return Choice(folder, "", f"{repo}: {len(folder)} files, {total}.")
    if ggufs:
        return _with_projector(_default_gguf(repo, ggufs), files)
    found = ", ".join(sorted({PurePosixPath(file.path).suffix for file in files} - {""})) or "none"
    raise SourceError(
        say(
            "{repo} has neither safetensors nor GGUF weights (file types: {found}); Pagoda loads "
            "no pickles. Choose a converted copy of the model.",
            repo=repo,
            found=found,
        )
    )


def quant_of(path: str) -> str:
    """The quantization that a GGUF's path names, in capitals; empty if it names none."""
    found = _QUANT.findall(path.removesuffix(".gguf"))
    return found[-1].upper() if found else ""


def best_projector(names: Iterable[str]) -> str | None:
    """The best of the vision projectors of one model: F16, else BF16, Q8_0 or F32, else the first.
    Towers are small, and rounding them shows."""
    known = {quant_of(name): name for name in sorted(names, reverse=True)}
    return next((known[quant] for quant in (*_PROJECTORS, *known) if quant in known), None)


def is_projector(name: str) -> bool:
    """Whether a file is a vision tower by its name."""
    return name.lower().endswith(".gguf") and "mmproj" in name.lower()


def is_gguf_model(name: str) -> bool:
    """Whether a file is a model by its name; vision projectors and importance matrices are none."""
    is_gguf = name.lower().endswith(".gguf")
    return is_gguf and not is_projector(name) and "imatrix" not in name.lower()


def _is_safe(path: str) -> bool:
    """The hub names the files we write: nothing may leave the model's folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path


def _gguf_models(files: Sequence[RemoteFile]) -> list[tuple[RemoteFile, ...]]:
    """GGUFs, the parts of a split one together."""
    models: dict[str, list[RemoteFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.path):
        if is_gguf_model(PurePosixPath(file.path).name):
            models[_SPLIT.sub("", file.path.removesuffix(".gguf"))].append(file)
    return [tuple(parts) for parts in models.values()]


def _safetensors_model(files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files of a Hugging Face model at the top of the repository; empty without weights."""
    top = [file for file in files if "/" not in file.path and not file.path.startswith(".")]
    weights = [file for file in top if file.path.endswith(".safetensors")]
    # Mistral's repositories carry every weight twice, once in this form.
    plain = [file for file in weights if not file.path.startswith("consolidated")]
    weights = plain or weights
    if not weights:
        return ()
    modules = [file for file in files if _MODULE.fullmatch(file.path)]
    return tuple(weights + modules + [file for file in top if file.path.endswith(_COMPANIONS)])


def _gguf_choice(repo: str, model: tuple[RemoteFile, ...], why: str) -> Choice:
    total = format_bytes(sum(file.nbytes for file in model))
    return Choice(model, model[0].path, f"{repo}: {model[0].path} ({total}), {why}.")


def _selected(repo: str, ggufs: list[tuple[RemoteFile, ...]], selector: str) -> Choice:
    named = [
        model
        for model in ggufs
        if any(selector in (file.path, PurePosixPath(file.path).name) for file in model)
    ]
    quant = selector.upper()
    matches = named or [model for model in ggufs if quant_of(model[0].path) == quant]
    if len(matches) == 1:
        return _gguf_choice(repo, matches[0], "as asked for")
    known = ", ".join(quant_of(model[0].path) or model[0].path for model in ggufs)
    if not matches:
        raise SourceError(
            f"{repo} has no {selector!r}; it has "
            + (f"{known}." if known else f"no GGUF at all, so ask for {repo} alone.")
        )
    paths = ", ".join(model[0].path for model in matches)
    raise SourceError(f"{repo} has several {selector}: {paths}. Name the file.")


def _projector(files: Sequence[RemoteFile], name: str) -> RemoteFile | None:
    """The vision tower of that name, or of that path."""
    towers = [file for file in files if is_projector(PurePosixPath(file.path).name)]
    return next((f for f in towers if name in (f.path, PurePosixPath(f.path).name)), None)


def _with_projector(choice: Choice, files: Sequence[RemoteFile]) -> Choice:
    """With the vision tower, where the model's folder has one."""
    folder = PurePosixPath(choice.entry).parent
    found = {
        file.path: file
        for file in files
        if PurePosixPath(file.path).parent == folder and is_projector(PurePosixPath(file.path).name)
    }
    best = best_projector(found)
    if best is None:
        return choice
    reason = f"{choice.reason.removesuffix('.')}; images by {best}."
    return replace(choice, files=(*choice.files, found[best]), reason=reason)


def _default_gguf(repo: str, ggufs: list[tuple[RemoteFile, ...]]) -> Choice:
    if len(ggufs) == 1:
        return _gguf_choice(repo, ggufs[0], "the only one")
    for quant in _PREFERRED:
        for model in ggufs:
            if quant_of(model[0].path) == quant:
                return _gguf_choice(repo, model, f"{quant} of {_and_others(repo, ggufs, model)}")
    smallest = min(ggufs, key=lambda model: sum(file.nbytes for file in model))
    why = f"the smallest of {_and_others(repo, ggufs, smallest)}"
    return _gguf_choice(repo, smallest, why)


def _and_others(
    repo: str, ggufs: list[tuple[RemoteFile, ...]], taken: tuple[RemoteFile, ...]
) -> str:
    """How many there are, and how those are asked for that were not taken."""
    quants = [quant_of(model[0].path) for model in ggufs]
    others = [
        quant if quant and quants.count(quant) == 1 else model[0].path
        for model, quant in zip(ggufs, quants, strict=True)
        if model is not taken
    ]
    first, *rest = others[:_NAMED]
    more = f" (or {', '.join(rest)}{', ...' if len(others) > _NAMED else ''})" if rest else ""
    return f"{len(ggufs)}; write {repo}:{first}{more} for another"
