"""A generation's output on its way to a reply: which of it is thought, text or a call."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pagoda.engine.outputs import OutputDelta
from pagoda.text.parsers.base import Delta, OutputParser


@dataclass
class ReplyReader:
    """Of one choice."""

    parser: OutputParser
    parallel_calls: bool
    """False drops all calls but the first."""
    named_call: bool = False
    """A call was asked for by name: the reply ends with `stop`, as OpenAI's."""
    thought: list[str] = field(default_factory=list)
    called: bool = False
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def feed(self, output: OutputDelta) -> list[Delta]:
        """What became certain with this output; sets the finish reason with the last."""
        deltas = self.parser.feed(output.text) if output.text else []
        if output.finish_reason is not None:
            deltas = [*deltas, *self.parser.finish()]
        if not self.parallel_calls:
            deltas = [delta for delta in deltas if not delta.tool_index]
        for delta in deltas:
            if delta.kind == "reasoning":
                self.thought.append(delta.text)
            elif delta.kind == "tool_call":
                self.called = True
        if output.finish_reason is not None:
            called = self.called and not self.named_call and output.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else output.finish_reason
            self.stop_reason = output.stop_reason
        return deltas

    def count_thought(self, encode: Callable[..., list[int]]) -> int:
        """Tokens of the thought, by the tokenizer's `encode`."""
        return len(encode("".join(self.thought), add_special_tokens=False)) if self.thought else 0
