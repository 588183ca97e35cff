"""Which kernels a model's steps launch: found on tensors without memory, so that nothing runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.runtime.jit import JITFunction

from pagoda.base.log import get_logger
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.kernels import ops
from pagoda.models.base import Model
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.profile import step_of
from pagoda.runtime.steps.program import StepLimits

logger = get_logger(__name__)

_MASKED = 32
"""Tokens of a word of a mask."""


class Launch(NamedTuple):
    """A kernel, and what it is compiled for."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    key: str
    """What tells it from other launches of the kernel, in Triton's words."""

    @property
    def name(self) -> str:
        """As `gemm.tiles`."""
        module, name = self.kernel.fn.__module__, self.kernel.__name__
        return f"{module.rpartition('.')[2]}.{name.strip('_')}"

    def compile(self) -> Any:
        """Triton's compiled kernel, which the next launch of this kind finds; raises what its
        compiler raises."""
        return self.kernel.run(*self.args, grid=(1,), warmup=True, **self.options)


@torch.inference_mode()
def needed(model: Model, groups: Sequence[GroupSpec], limits: StepLimits) -> list[Launch]:
    """What steps within `limits` launch and this process has not compiled, each once, in
    the order of the steps. `model` is without memory (`weightless`), `groups` are those of
    its cache. A step that cannot be found out so is left out, and a debug message says why."""
    cache = CacheMemory(groups, 1, _Nowhere())
    found: dict[tuple[int, str], Launch] = {}
    with _noted(found):
        for starts, table_tokens in _steps(limits):
            try:
                _compute(model, groups, cache, starts, table_tokens)
            except Exception as error:  # noqa: BLE001  # layers raise what their parts raise
                logger.debug("What %s tokens launch is not known: %s", starts[-1], error)
    return list(found.values())


class _Nowhere(CpuDevice):
    torch_device = torch.device("meta")

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `Device.reserve`, without memory."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)


def _steps(limits: StepLimits) -> Iterator[tuple[Ints, int]]:
    """Where the requests of each step begin and the last one ends, and for how many tokens their
    block tables have room: prompts and streams, of short contexts and of the longest."""
    most = min(limits.max_tokens, limits.max_model_len)
    for table_tokens in sorted({1, limits.max_model_len}):
        for tokens in _doubled(most):
            yield np.array([0, tokens]), table_tokens
        for requests in _doubled(min(limits.max_reqs, limits.max_tokens))[1:]:
            yield np.arange(requests + 1), table_tokens


def _doubled(most: int) -> list[int]:
    """Numbers from 1 to `most`: kernels are others from some power of two on."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _compute(
    model: Model, groups: Sequence[GroupSpec], cache: CacheMemory, starts: Ints, table_tokens: int
) -> None:
    hidden_states = model.forward(step_of(starts, groups, cache, _Nowhere(), table_tokens))
    if model.spec.writes_text:
        _choose(model.compute_logits(hidden_states[: len(starts) - 1]))


def _choose(logits: torch.Tensor) -> None:
    """A token of each row, by a grammar and a draw."""
    count, vocab = logits.shape
    rows = torch.empty(count, dtype=torch.int64, device=logits.device)
    words = torch.empty(count, -(-vocab // _MASKED), dtype=torch.int32, device=logits.device)
    ops.mask_logits(logits, rows, words)
    values, ids = ops.first_max(logits)
    types = (np.float32, np.int32, np.float64, np.float32, np.uint64, np.int64)
    ops.draw(ids, logits, values, ops.DrawParams._make(np.zeros(count, kind) for kind in types))


@contextmanager
def _noted(found: dict[tuple[int, str], Launch]) -> Iterator[None]:
    """Launches of this process go into `found` in the place of a device."""
    run, compile_ = JITFunction.run, JITFunction._do_compile
    current: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        nonlocal current
        current = args, options
        run(kernel, *args, grid=grid, warmup=True, **options)

    def keep(kernel: Any, key: str, *_: Any) -> None:
        found.setdefault((id(kernel), key), Launch(kernel, *current, key))

    JITFunction.run, JITFunction._do_compile = note, keep
    try:
        yield
    finally:
        JITFunction.run, JITFunction._do_compile = run, compile_
