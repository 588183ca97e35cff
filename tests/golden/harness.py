"""Drives a real engine in process and keeps every logits row it sampled from."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import torch

from pagoda.config.engine import EngineConfig
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.engine.startup import start_engine
from tests.plans import shares


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """fp32 [vocab] per output token."""
    num_cached_tokens: int = 0
    finish_reason: str | None = None


class Engine:
    """An engine whose model records the logits of every sampled position."""

    def __init__(self, model: str, *, dtype: str = "float32", record: bool = True, **fields):
        config = EngineConfig()
        config = replace(config, model=replace(config.model, model=model, dtype=dtype))
        fields = {"max_step_ms": 0, **fields}  # steps are the same however fast the machine is
        for section in ("cache", "scheduler"):
            known = {k: v for k, v in fields.items() if hasattr(getattr(config, section), k)}
            changed = replace(getattr(config, section), **known)
            config = replace(config, **{section: changed})
        # A row of logits for each token, as it is decoded.
        config = replace(config, speculation=SpeculationConfig({"method": "none"}))
        self.core, self.ready = start_engine(config, lambda message: None)
        self._rows: list[torch.Tensor] = []
        self._plan = None
        self.recorded: dict[str, list[torch.Tensor]] = defaultdict(list)
        if record:
            self._tap(self.core.executor.runner)

    def _tap(self, runner) -> None:
        execute, forward = runner.execute, runner._forward

        def recording_forward(step):
            computed = forward(step)
            if computed.logits is not None:
                self._rows.append(computed.logits.float().clone())
            return computed

        def recording_execute(plan):
            self._rows = []
            result = execute(plan)
            if self._rows:
                rows = torch.cat(self._rows)
                sampling = [p.req_id for p in shares(plan) if p.samples]
                assert len(rows) == len(sampling)
                for req_id, row in zip(sampling, rows, strict=True):
                    self.recorded[req_id].append(row)
            return result

        runner._forward = recording_forward
        runner.execute = recording_execute

    def run(self, prompts: dict[str, list[int]], sampling: SamplingParams) -> dict[str, Answer]:
        """All prompts at once, to the end."""
        for req_id, ids in prompts.items():
            self.core.handle(AddRequest(req_id=req_id, prompt_token_ids=ids, sampling=sampling))
        answers = {req_id: Answer() for req_id in prompts}
        while self.core.has_work():
            for delta in self.core.step():
                self._take(answers[delta.req_id], delta)
        for req_id, answer in answers.items():
            answer.logits = self.recorded.pop(req_id, [])
        return answers

    def _take(self, answer: Answer, delta: RequestDelta) -> None:
        assert delta.error is None, delta.error
        answer.token_ids += delta.token_ids
        answer.num_cached_tokens = delta.num_cached_tokens or answer.num_cached_tokens
        answer.finish_reason = delta.finish_reason or answer.finish_reason
