"""gpt-oss: messages `<|channel|>analysis<|message|>...<|end|><|start|>assistant...`; a call is a
message `to=functions.NAME` with JSON for content.

The format: https://github.com/openai/harmony/blob/main/docs/format.md
"""

import re
from dataclasses import dataclass

from pagoda.text.grammar.calls import CallForm
from pagoda.text.grammar.reply import ThoughtLimit
from pagoda.text.grammar.rules import Rules, optional, repeated
from pagoda.text.parsers.base import Delta, Kind, OutputParser, ParserFamily, ToolSpecs
from pagoda.text.parsers.calls import Calls, arguments, pass_if
from pagoda.text.parsers.reader import Reader, SteppedParser, Steps
from pagoda.text.parsers.tools import Tools

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
_HEADER = re.compile(
    r"(<\|start\|>)?[\w .=-]*(<\|channel\|>[\w .=-]*)?(<\|constrain\|>[\w .=-]*)?", re.ASCII
)
_CUT_OFF = re.compile(_HEADER.pattern + r"(<[|\w]*)?", re.ASCII)
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")


@dataclass(frozen=True)
class Harmony:
    """Which of the parts are told apart; the rest is text."""

    thought: bool = True
    calls: bool = True

    def family(self, name: str) -> ParserFamily:
        def create(prompt: str, tools: ToolSpecs) -> OutputParser:
            reader = Reader()
            known = Tools(tools if self.calls else ())
            return SteppedParser(reader, _HarmonyReply(self.thought, reader, known).read(prompt))

        return ParserFamily(name, create, HarmonyForm(CALL if self.calls else None), _TOKENS)


# The call's end is an end of the turn: there is one call to a reply.
CALL = CallForm(
    head=f"{CHANNEL}commentary to=functions.",
    middle=f" {CONSTRAIN}json{MESSAGE}",
    tail="",
    single=True,
)


@dataclass(frozen=True)
class HarmonyForm:
    """Messages of analysis, then one for the answer or the call."""

    calls: CallForm | None
    closing = None

    def end_of_thought(self, prompt: str) -> str:
        return ""  # a prompt opens none

    def opening(self, rules: Rules, prompt: str, limit: ThoughtLimit | None = None) -> str:
        if not prompt.rstrip().endswith(f"{START}assistant"):
            return ""
        head, begun = f"{CHANNEL}analysis{MESSAGE}", f"{START}assistant"
        return repeated(f"{rules.literal(head)} {rules.until(ENDS[0])} {rules.literal(begun)}")

    def answer(self, rules: Rules, body: str) -> str:
        constrained = optional(rules.literal(f" {CONSTRAIN}json"))
        head = f"{rules.literal(f'{CHANNEL}final')} {constrained} {rules.literal(MESSAGE)}"
        return f"{head} {body}"


class _HarmonyReply:
    def __init__(self, thought: bool, reader: Reader, tools: Tools):
        self._thought = thought
        self._reader = reader
        self._calls = Calls(tools)

    def read(self, prompt: str) -> Steps[None]:
        reader = self._reader
        _, _, begun = prompt.rpartition(START)
        header, inside, _ = begun.partition(MESSAGE)
        if inside and not any(end in begun for end in ENDS):
            yield from self._body(header)
        while (yield from reader.peek()):
            header = yield from self._header()
            yield from self._body(header)

    def _header(self) -> Steps[str]:
        """Take what precedes a message's content and return it; empty if none does."""
        reader = self._reader
        yield from reader.space()
        begins = yield from reader.literal(START, CHANNEL, "to=")
        behind = reader.at
        rest = (yield from reader.word(MESSAGE)) if begins else None
        if rest is not None and _HEADER.fullmatch(begins + rest):
            yield from reader.literal(MESSAGE)
            return reader.take()
        # No header: its first token is no text all the same.
        reader.at = behind if begins in (START, CHANNEL) else 0
        cut_off = begins and rest is None and reader.ended
        if cut_off and _CUT_OFF.fullmatch(begins + reader.text[behind:]):
            reader.at = len(reader.text)
        reader.take()
        return ""

    def _body(self, header: str) -> Steps[None]:
        recipient = _RECIPIENT.search(header)
        if recipient and len(self._calls.tools) and (yield from self._call(recipient[1])):
            return
        thinks = self._thought and _ANALYSIS.search(header)
        yield from self._content("reasoning" if thinks else "text")

    def _call(self, name: str) -> Steps[bool]:
        if not (yield from arguments(self._reader, self._calls, name)):
            self._reader.at = 0
            return False
        yield from pass_if(self._reader, *ENDS)
        return True

    def _content(self, kind: Kind) -> Steps[None]:
        """To the end of the message; other tokens of the markup are no text."""
        reader = self._reader
        while tag := (yield from reader.until(_TOKENS, lambda text: Delta(kind, text))):
            if tag in (START, CHANNEL):
                reader.at = 0
                return
            reader.take()
            if tag in ENDS:
                return


MARKUP = Harmony()
