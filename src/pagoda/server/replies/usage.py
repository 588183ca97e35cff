"""Token counts of a reply at its end, and the fingerprint of what produced it."""

import hashlib

from pagoda.engine.served.model import ServedModel
from pagoda.server.protocol.replies import CompletionTokensDetails, PrefixReport, Usage
from pagoda.server.replies.events import ReplyStream
from pagoda.version import __version__


def final_usage(stream: ReplyStream, *, reports_prefix: bool) -> Usage:
    usage, thought = stream.usage(), stream.count_thought()
    if thought:
        usage.completion_tokens_details = CompletionTokensDetails(thought)
    if reports_prefix:
        usage.prompt_tokens_details.prefix_report = _prefix_report(stream)
    return usage


def _prefix_report(stream: ReplyStream) -> PrefixReport:
    """How much of the first choice's prompt was cached."""
    first, served = stream.readers[0], stream.generation.served
    if first.prefix_miss is None or first.prefix_miss == "off":
        return PrefixReport(reason=first.prefix_miss or "all")
    at, ready = first.num_cached_tokens or 0, served.client.ready
    size = ready.block_size if ready is not None else 0
    block = stream.generation.prompt_ids(0)[at : at + size]
    return PrefixReport(reason=first.prefix_miss, at_token=at, text=served.tokenizer.decode(block))


def fingerprint(served: ServedModel) -> str:
    """Changes when the program, the model or its shape does: seeds repeat only within one."""
    ready = served.client.ready
    shape = (served.root, ready and (ready.max_model_len, ready.vocab_size, ready.block_size))
    return f"pagoda-{__version__}-{hashlib.sha256(repr(shape).encode()).hexdigest()[:8]}"
