"""How long a reply took, as llama-server tells it."""

from msgspec import UNSET

from pagoda.server.metrics import RequestTimer
from pagoda.server.protocol.replies import PromptProgress, Timings


def timings(timer: RequestTimer) -> Timings:
    prompt, steps = timer.num_prompt_tokens - timer.num_cached_tokens, max(timer.num_tokens - 1, 0)
    prompt_ms, decode_ms = timer.prompt_seconds * 1000, timer.decode_seconds * 1000
    return Timings(
        cache_n=timer.num_cached_tokens,
        prompt_n=prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, prompt),
        prompt_per_second=_ratio(prompt * 1000, prompt_ms),
        predicted_n=timer.num_tokens,
        predicted_ms=decode_ms,
        predicted_per_token_ms=_ratio(decode_ms, steps),
        predicted_per_second=_ratio(steps * 1000, decode_ms),
        draft_n=timer.num_draft_tokens or UNSET,
        draft_n_accepted=timer.num_accepted_tokens if timer.num_draft_tokens else UNSET,
    )


def prompt_progress(timer: RequestTimer) -> PromptProgress:
    """How far a prompt has come whose reply has not begun."""
    return PromptProgress(
        total=timer.num_prompt_tokens,
        cache=timer.num_cached_tokens,
        processed=timer.num_prompt_done,
        time_ms=timer.waited_seconds * 1000,
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
