"""What a model is, loaded or not, for the routes that show models: facts from its files' headers,
and what follows from them."""

import asyncio
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pagoda.arch.registry import spec_for
from pagoda.base.errors import PagodaError
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.planner.memory.tensors import parameter_count
from pagoda.text.fim import fim_tokens
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.sources import template_sources
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.source import find_model

_THINKS = re.compile(r"enable_thinking|reasoning_effort|<think|\[THINK\]|<\|channel")


@dataclass(frozen=True)
class ModelFacts:
    """Empty and 0 where a model is not on this machine, or not known."""

    format: str = ""
    """`gguf` or `safetensors`."""
    architecture: str = "unknown"
    """By its GGUF name, or model_type of its config.json."""
    num_parameters: int = 0
    quantization: str = ""
    """The storage format of most bytes."""
    bits: float | None = None
    """How many a parameter takes, on average."""
    nbytes: int = 0
    """The size of its files."""
    modified: float | None = None
    """Seconds since the epoch."""
    digest: str = ""
    """64 hex digits that change with the files' path, size and time; no hash of their content."""
    trained_length: int = 0
    """Tokens of context."""
    sees: bool = False
    hears: bool = False
    writes: bool = True
    template: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    """By the names that GGUF has for them."""

    @property
    def parameters(self) -> str:
        """`8.0B`, `134.52M`."""
        count = self.num_parameters
        if not count:
            return ""
        return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"


@dataclass(frozen=True)
class ShownModel:
    """A model under one of its names."""

    name: str
    entry: ModelEntry
    facts: ModelFacts

    @property
    def context_length(self) -> int:
        """Tokens that a request can have: of a loaded model those that it is served with, and of
        another those that it was trained for, unless a flag says fewer."""
        served, wanted = self.entry.served, self.entry.config.model.max_model_len
        if served is not None and served.max_model_len:
            return served.max_model_len
        trained = self.facts.trained_length
        asked = [wanted] if isinstance(wanted, int) and wanted > 0 else []
        return min([*asked, *([trained] if trained else [])], default=0)

    @property
    def template(self) -> str:
        served = self.entry.served
        if served is None:
            return self.facts.template
        return served.chat_template.source if served.chat_template is not None else ""

    @property
    def writes(self) -> bool:
        served = self.entry.served
        return self.facts.writes if served is None else served.generates

    @property
    def sees(self) -> bool:
        served = self.entry.served
        return self.facts.sees if served is None else "image" in served.modalities

    @property
    def hears(self) -> bool:
        served = self.entry.served
        return self.facts.hears if served is None else "audio" in served.modalities

    @property
    def calls_tools(self) -> bool:
        """Whether it can: a model whose template shows no tools is told of them in words."""
        served = self.entry.served
        parser = parser_for(self.template or None) if served is None else served.parser
        return self.writes and parser.form.calls is not None

    @property
    def knows_tools(self) -> bool:
        """Whether its template shows them, as that of a model which was trained for them does."""
        return self.calls_tools and "tools" in self.template

    @property
    def thinks(self) -> bool:
        return self.writes and _THINKS.search(self.template) is not None

    @property
    def fills_in(self) -> bool:
        """Whether it has tokens for what stands between a prefix and a suffix; False while it is
        not loaded."""
        served = self.entry.served
        return self.writes and served is not None and fim_tokens(served.tokenizer) is not None


async def shown_model(entry: ModelEntry, name: str) -> ShownModel:
    """Read aside from the event loop: headers may be megabytes."""
    return ShownModel(name, entry, await asyncio.to_thread(_facts_of, entry))


async def shown_models(entries: list[ModelEntry]) -> list[ShownModel]:
    """One for each name."""
    shown = []
    for entry in entries:
        first = await shown_model(entry, entry.names[0])
        shown += [ShownModel(name, entry, first.facts) for name in entry.names]
    return shown


def _facts_of(entry: ModelEntry) -> ModelFacts:
    model = entry.config.model
    files: ModelFiles | None = entry.served.text.files if entry.served is not None else None
    try:
        if files is None:
            path = find_model(model.model, download_dir=model.download_dir, revision=model.revision)
            if path is None:
                return ModelFacts(digest=_digest(entry.names[0]))
            files = open_model(path, model.mmproj)
        return _read(files.path, files.projector, files.path.stat().st_mtime_ns)
    except (PagodaError, OSError):
        # A list of models has room for one that cannot be read; loading it says what is wrong.
        return ModelFacts(digest=_digest(entry.names[0]))


@lru_cache(maxsize=64)
def _read(path: Path, projector: Path | None, _mtime: int) -> ModelFacts:
    files = open_model(path, str(projector) if projector is not None else None)
    tensors = files.checkpoint.tensors
    spec = spec_for(files.config, files.metadata, tensors)
    paths = files.weight_paths()
    nbytes = sum(part.stat().st_size for part in paths)
    modified = max(part.stat().st_mtime for part in paths)
    types: Counter[str] = Counter()
    for tensor in tensors.values():
        types[tensor.type] += tensor.nbytes
    count = parameter_count(spec)
    named: Any = files.metadata.get("general.architecture") or (files.config or {}).get(
        "model_type"
    )
    return ModelFacts(
        format=files.kind,
        architecture=str(named or spec.architecture),
        num_parameters=count,
        quantization=types.most_common(1)[0][0],
        bits=round(8 * sum(types.values()) / count, 2),
        nbytes=nbytes,
        modified=modified,
        digest=_digest(f"{path} {nbytes} {modified}"),
        trained_length=spec.max_position,
        sees=spec.vision is not None,
        hears=spec.audio is not None,
        writes=spec.writes_text,
        template="\n".join(template_sources(files, None).values()),
        sizes={
            "block_count": len(spec.layers),
            "embedding_length": spec.hidden_size,
            "vocab_size": spec.vocab_size,
        },
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
