"""Replies marked up with tags: thought first, then text and calls. Most families are a table of
tags; this is the machine that reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagoda.text.grammar.calls import CallForm
from pagoda.text.grammar.reply import ThoughtLimit
from pagoda.text.grammar.rules import SPACE, Rules, optional
from pagoda.text.parsers.base import Delta, OutputParser, ParserFamily, ToolSpecs
from pagoda.text.parsers.calls import CallReader, Calls
from pagoda.text.parsers.reader import Give, Reader, SteppedParser, Steps
from pagoda.text.parsers.tools import Tools


@dataclass(frozen=True)
class Thought:
    """The tags around reasoning."""

    open: str
    closes: tuple[str, ...]
    anywhere: bool = False
    """The tags are tokens of their own, which mean nothing else; otherwise the reply must begin
    with one, as models write about such tags, too."""
    label: str = ""
    """A word that may follow the opening tag and is no thought."""

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt ends inside of a thought."""
        return prompt.rstrip().endswith((self.open + self.label).rstrip())


@dataclass(frozen=True)
class Markup:
    """The tags of a family."""

    thought: Thought | None = None
    calls: Mapping[str, CallReader] = field(default_factory=dict)
    """What reads on behind each tag that opens calls."""
    control: tuple[str, ...] = ()
    """Control tokens of the markup: they are no text even where they stand astray."""
    call_form: CallForm | None = None
    """How calls are written where a grammar makes the model write them."""

    def tokens(self) -> tuple[str, ...]:
        thought = (self.thought.open, *self.thought.closes) if self.thought else ()
        return (*thought, *self.calls, *self.control)

    def family(self, name: str) -> ParserFamily:
        def create(prompt: str, tools: ToolSpecs) -> OutputParser:
            if self == PLAIN:
                return _PlainParser()
            reader = Reader()
            return SteppedParser(reader, _TaggedReply(self, reader, Tools(tools)).read(prompt))

        form = TaggedForm(self.thought, self.call_form)
        return ParserFamily(name, create, form, self.tokens())


@dataclass(frozen=True)
class TaggedForm:
    """A thought between its tags, then what is asked for."""

    thought: Thought | None
    calls: CallForm | None

    @property
    def closing(self) -> str | None:
        return self.thought.closes[-1] if self.thought is not None else None

    def end_of_thought(self, prompt: str) -> str:
        thought = self.thought
        return thought.closes[-1] if thought is not None and thought.opened_by(prompt) else ""

    def opening(self, rules: Rules, prompt: str, limit: ThoughtLimit | None = None) -> str:
        thought = self.thought
        if thought is None:
            return ""
        inside = (
            rules.until(thought.closes[-1])
            if limit is None
            else rules.at_most(limit.tokens, limit.closing_id)
        )
        if thought.opened_by(prompt):
            return inside
        space = optional(rules.rule(SPACE))
        if limit is not None:
            return f"{space} {rules.literal(thought.open)} {inside}"
        return optional(f"{space} {rules.literal(thought.open)} {inside}")

    def answer(self, rules: Rules, body: str) -> str:
        return body


THINK = Thought("<think>", ("</think>",))
PLAIN = Markup()
"""Models without markup: everything is text."""


class _PlainParser(OutputParser):
    def feed(self, text: str) -> list[Delta]:
        if not text:
            return []
        start = self.text_spans[-1][1] if self.text_spans else 0
        self._found_text(start, start + len(text))
        return [Delta("text", text)]

    def finish(self) -> list[Delta]:
        return []


class _TaggedReply:
    def __init__(self, markup: Markup, reader: Reader, tools: Tools):
        self._reader = reader
        self._thought = markup.thought
        self._openers = markup.calls if len(tools) else {}
        self._calls = Calls(tools)
        self._behind_call = False
        """Nothing but white space came since the last call."""
        self._strays = tuple(tag for tag in markup.control if tag not in self._openers)

    def read(self, prompt: str) -> Steps[None]:
        reader, thought = self._reader, self._thought
        if thought and (yield from self._begins_in_thought(thought, prompt)):
            yield from self._think(thought)
        opens = thought.open if thought and thought.anywhere else ""
        tags = (*self._openers, *self._strays, *((opens,) if opens else ()))
        # White space around calls is part of the markup: content is null beside calls alone.
        hold = bool(self._openers)
        while tag := (yield from reader.until(tags, self._text, hold_space=hold)):
            if tag in self._openers:
                yield from self._call(tag, self._text)
                continue
            space = reader.take(leave=len(tag))
            if space:
                yield self._text(space)
            reader.take()
            if thought and tag == opens:
                yield from reader.literal(thought.label)
                reader.take()
                yield from self._think(thought)
        rest = reader.take()
        if rest and not self._behind_call:
            yield self._text(rest)

    def _begins_in_thought(self, thought: Thought, prompt: str) -> Steps[bool]:
        """Templates may open the tag themselves; one that the model repeats is left out."""
        opened = thought.opened_by(prompt)
        if thought.anywhere and not opened:
            return False
        reader = self._reader
        yield from reader.space()
        repeated = yield from reader.literal(thought.open)
        if not repeated:
            reader.at = 0
            return opened
        space = reader.take(leave=len(repeated))
        if space:
            yield _reasoning(space)
        reader.take()
        return True

    def _think(self, thought: Thought) -> Steps[None]:
        """To the end of the thought. Calls of known tools count: models forget to close it first
        (Qwen 3.5: https://github.com/vllm-project/vllm/pull/35687)."""
        strays = (tag for tag in self._strays if tag not in thought.closes)
        tags = (*thought.closes, *self._openers, *strays)
        while tag := (yield from self._reader.until(tags, _reasoning)):
            if tag in self._openers:
                self._calls.known_only = True
                yield from self._call(tag, _reasoning)
                self._calls.known_only = False
                continue
            self._reader.take()
            if tag in thought.closes:
                return

    def _call(self, tag: str, give: Give) -> Steps[None]:
        before = self._calls.count
        yield from self._openers[tag](self._reader, self._calls)
        self._behind_call = self._calls.count > before
        rest = self._reader.take()
        if rest:
            yield give(rest)

    def _text(self, text: str) -> Delta:
        self._behind_call = False
        return Delta("text", text)


def _reasoning(text: str) -> Delta:
    return Delta("reasoning", text)
