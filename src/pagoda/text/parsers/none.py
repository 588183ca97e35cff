"""Models without markup: everything is text."""

from pagoda.text.parsers.base import Delta, OutputParser, ParserFamily


class NoneParser(OutputParser):
    def feed(self, text: str) -> list[Delta]:
        return [Delta("text", text)] if text else []

    def finish(self) -> list[Delta]:
        return []


FAMILY = ParserFamily("none", lambda prompt: NoneParser())
