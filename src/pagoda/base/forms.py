"""Sentences found again by their form: "Ann is 5." has the form "{name} is {age}."

What a sentence was made of is lost where it crossed a process, a file or the network; its form is
not. The agent has this file, too.
"""

import re
from collections.abc import Mapping
from string import Formatter

_WORDS = 3
"""Least characters of a form that has words of its own."""
_LONGEST = 2000
"""Characters of a sentence that is looked up."""


class Forms:
    """A table from forms to their translations, which have the same fields."""

    def __init__(self, table: Mapping[str, str]):
        forms = [_Form(form, translation) for form, translation in table.items()]
        # Of two that fit, the one with more words of its own was meant.
        self._forms = sorted(forms, key=lambda form: (form.own, form.stop), reverse=True)

    def translated(self, text: str) -> str:
        """With the sentences that it quotes, which may lack their full stop; as it is where it has
        no form of the table."""
        if not text or len(text) > _LONGEST:
            return text
        # What only puts a colon between two texts fits much, and is asked last.
        for least, whole in ((_WORDS, True), (_WORDS, False), (0, True)):
            for form in self._forms:
                if form.own < least:
                    break
                if (values := form.values(text, whole)) is not None:
                    fields = {name: self.translated(value) for name, value in values.items()}
                    return form.filled(fields, stop=whole)
        return text


class _Form:
    def __init__(self, form: str, translation: str):
        # With a literal before each field and behind the last.
        self._literals = [""]
        self._names: list[str] = []
        for literal, name, *_ in Formatter().parse(form.removesuffix(".")):
            self._literals[-1] += literal
            if name is not None:
                self._names.append(name)
                self._literals.append("")
        self.stop = form.endswith(".")
        self._translation = translation
        self.own = sum(map(len, self._literals))

    def values(self, text: str, whole: bool) -> dict[str, str] | None:
        """What the fields hold; None if the text has another form. `whole`: with its full stop."""
        if not (whole or self.stop):
            return None
        place = 0
        for literal in self._literals:  # much faster than the expression, and rarely wrong
            place = text.find(literal, place)
            if place < 0:
                return None
            place += len(literal)
        pattern = "(.*?)".join(map(re.escape, self._literals)) + r"\." * (whole and self.stop)
        found = re.fullmatch(pattern, text, re.DOTALL)
        return found and dict(zip(self._names, found.groups(), strict=True))

    def filled(self, fields: Mapping[str, str], stop: bool) -> str:
        translation = self._translation
        if self.stop and not stop:
            translation = translation.removesuffix("。")
        return "".join(
            literal + (fields[name] if name is not None else "")
            for literal, name, *_ in Formatter().parse(translation)
        )
