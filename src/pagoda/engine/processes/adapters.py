"""The adapters of an engine as its callers know them: by the names that requests give as `model`,
and by the ids of llama-server's list."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pagoda.base.errors import RequestError
from pagoda.config.adapters import AdapterConfig
from pagoda.core.messages import AddRequest, EngineReady, LoadedAdapter

Scales = Mapping[int, float]
"""By the id of an adapter, what it is multiplied with; 0 for those that are left out."""


@dataclass
class ListedAdapter:
    """One of --lora and --lora-scaled, whose place is its id."""

    path: str
    scale: float
    """For requests that say nothing."""
    adapter: LoadedAdapter | None = None
    """Once the engine is ready."""


@dataclass
class KnownAdapters:
    config: AdapterConfig
    named: dict[str, LoadedAdapter] = field(default_factory=dict)
    """Those that requests choose by their names."""
    _began: bool = False

    def __post_init__(self) -> None:
        silent = self.config.lora_init_without_apply
        self.listed = [
            ListedAdapter(path, 0.0 if silent else scale) for path, scale in self.config.applied
        ]

    def on_ready(self, ready: EngineReady) -> Iterator[tuple[str, list[str]]]:
        """Take note of what a process has loaded; the calls that it takes for it to be what was
        there before, where it follows another."""
        by_path = {adapter.path: adapter for adapter in ready.adapters}
        for each in self.listed:
            each.adapter = by_path.get(each.path)
        if not self._began:
            self._began = True
            self.named = {each.name: by_path[each.path] for each in self.config.named}
            return
        for adapter in dict.fromkeys(self.named.values()):
            yield "load_adapter", [adapter.path, adapter.identity]
        for adapter in ready.adapters:
            if not self.has(adapter.identity):
                yield "unload_adapter", [adapter.identity]

    def has(self, identity: str) -> bool:
        """Whether a name or an id stands for it."""
        listed = (each.adapter for each in self.listed if each.adapter is not None)
        return any(known.identity == identity for known in (*self.named.values(), *listed))

    def rescale(self, scales: Scales) -> None:
        """What holds for requests that say nothing; RequestError for an id that is none."""
        checked = self._checked(scales)
        for index, each in enumerate(self.listed):
            each.scale = checked.get(index, 0.0)

    def apply(self, request: AddRequest, model: str | None, scales: Scales | None) -> None:
        """Have a request computed with the adapter whose name it gave as `model`; else with those
        of `scales`, or without a word of it those of the list, by their scales."""
        named = self.named.get(model or "")
        if named is not None:
            if scales:
                raise RequestError(
                    f"{model!r} is an adapter itself; ask for its model to set scales.", "lora"
                )
            request.adapter, request.adapter_name = named.identity, model
            return
        if scales is None:
            chosen = {index: each.scale for index, each in enumerate(self.listed)}
        else:
            chosen = dict(self._checked(scales))
        parts = [
            (each.adapter.identity, chosen[index])
            for index, each in enumerate(self.listed)
            if each.adapter is not None and chosen.get(index)
        ]
        if len(parts) == 1 and parts[0][1] == 1.0:
            request.adapter = parts[0][0]
        elif parts:
            request.adapter = hashlib.sha256(repr(parts).encode()).hexdigest()
            request.adapter_parts = parts

    def _checked(self, scales: Scales) -> Scales:
        unknown = [index for index in scales if not 0 <= index < len(self.listed)]
        if unknown:
            known = f"ids are 0 to {len(self.listed) - 1}" if self.listed else "there are none"
            raise RequestError(
                f"There is no adapter {unknown[0]}: {known}. --lora FILE loads one.", "lora"
            )
        return scales
