"""What a step tells of its requests beside sampled tokens: embeddings, logprobs of prompts."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from pagoda.core.messages import POOLING_TASKS, TokenLogprobs
from pagoda.core.plan import RequestResult
from pagoda.layers.watched import Watched
from pagoda.planner.memory.plan import PROMPT_LOGITS
from pagoda.runtime.alignment import Aligner
from pagoda.runtime.model import Model
from pagoda.runtime.pooling import Pooler
from pagoda.runtime.sampling.logprobs import token_logprobs
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.sampling.sampler import NOT_A_NUMBER
from pagoda.runtime.states import Fault, RequestStates
from pagoda.runtime.steps.prepared import PreparedStep
from pagoda.runtime.steps.program import Computed


@dataclass
class Reports:
    """Puts into results what requests ask for."""

    model: Model
    vocab_size: int
    states: RequestStates
    pooler: Pooler
    aligner: Aligner = field(default_factory=Aligner)

    def add(
        self, step: PreparedStep, computed: Computed, results: dict[str, RequestResult]
    ) -> dict[int, Fault]:
        """Which of the step's requests are faulty, by their places."""
        hidden_states = computed.hidden_states
        faults: dict[int, Fault] = {}
        if computed.watched is not None:
            faults |= self._align(step, computed.watched, results)
        if step.needs & Needs.PROMPT_LOGPROBS:
            faults |= self._score_prompts(step, hidden_states, results)
        if step.needs & Needs.POOL:
            faults |= self._pool(step, hidden_states, results)
        return faults

    def _align(
        self, step: PreparedStep, watched: Watched, results: dict[str, RequestResult]
    ) -> dict[int, Fault]:
        plan = step.plan
        faults: dict[int, Fault] = {}
        for i in np.flatnonzero(step.flags & Needs.ALIGN).tolist():
            row = int(plan.rows[i])
            alignment = self.states.alignments[row]
            self.aligner.add(row, int(plan.starts[i]), watched.found.get(i), alignment)
            if plan.samples[i]:
                scores = self.aligner.take(row, alignment)
                if np.isfinite(scores).all():
                    results[plan.req_ids[i]].embedding = scores.tobytes()
                else:
                    faults[i] = NOT_A_NUMBER
        return faults

    def _pool(
        self, step: PreparedStep, hidden_states: torch.Tensor, results: dict[str, RequestResult]
    ) -> dict[int, Fault]:
        plan = step.plan
        faults: dict[int, Fault] = {}
        lens = plan.ends - plan.starts
        stops = np.cumsum(lens)
        ended: dict[str, list[int]] = {}
        for i in np.flatnonzero((step.flags & (Needs.POOL | Needs.ALIGN)) == Needs.POOL).tolist():
            row = int(plan.rows[i])
            task = POOLING_TASKS[self.states.params["task"][row]]
            length = int(self.states.params["prompt_len"][row])
            refusal = self.pooler.refusal(task, length, hidden_states.shape[1])
            if refusal is not None:
                faults[i] = Fault(refusal, bad_request=True)
                continue
            states = hidden_states[int(stops[i] - lens[i]) : int(stops[i])]
            self.pooler.add(row, task, int(plan.starts[i]), states)
            if plan.samples[i]:
                ended.setdefault(task, []).append(i)
        for task, mine in ended.items():
            pooled = self.pooler.pool(task, plan.rows[mine].tolist(), plan.ends[mine].tolist())
            for i, values in zip(mine, pooled, strict=True):
                if np.isfinite(values).all():
                    results[plan.req_ids[i]].embedding = values.tobytes()
                else:
                    faults[i] = NOT_A_NUMBER
        return faults

    def _score_prompts(
        self, step: PreparedStep, hidden_states: torch.Tensor, results: dict[str, RequestResult]
    ) -> dict[int, Fault]:
        """Score the prompt tokens whose logits this step computed, each of them once."""
        plan = step.plan
        faults: dict[int, Fault] = {}
        query_start = np.cumsum(plan.ends - plan.starts) - (plan.ends - plan.starts)
        for i in np.flatnonzero(step.flags & Needs.PROMPT_LOGPROBS).tolist():
            row, start = int(plan.rows[i]), int(plan.starts[i])
            first, stop = self.states.prompt_to_score(row, start, int(plan.ends[i]))
            entries: list[TokenLogprobs | None] = [None] if first == 0 else []
            # The hidden state at a position scores the token behind it.
            offset = int(query_start[i]) - start - 1
            entries += self._score(
                row, max(first, 1), stop, hidden_states[offset + max(first, 1) :]
            )
            if any(entry is not None and math.isnan(entry.logprob) for entry in entries):
                faults[i] = NOT_A_NUMBER
            elif entries:
                results[plan.req_ids[i]].prompt_logprobs = entries
        return faults

    def _score(
        self, row: int, first: int, stop: int, hidden_states: torch.Tensor
    ) -> list[TokenLogprobs]:
        """Tokens `first .. stop` of a row by the hidden states in front of each."""
        entries: list[TokenLogprobs] = []
        chunk = max(1, PROMPT_LOGITS // self.vocab_size)
        count = int(self.states.params["prompt_logprobs"][row])
        for start in range(first, stop, chunk):
            token_ids = self.states.token_ids[row, start : min(start + chunk, stop)]
            offset = start - first
            logits = self.model.compute_logits(hidden_states[offset : offset + len(token_ids)])
            counts = np.full(len(token_ids), count, np.int32)
            entries += token_logprobs(logits, token_ids.astype(np.int64), counts)
        return entries
