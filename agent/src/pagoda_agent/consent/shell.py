"""A line of commands, split into words, where every shell would split it alike.

Understood is only what bash, zsh, dash, fish, PowerShell and cmd read the same way: words with
simple quotes, `|`, `&&`, `||`, `;`, and redirections to /dev/null. There is no expansion but of `*`
and `?`. Whoever wants to know what a line does takes all else for unknown.
"""

import re
from typing import NamedTuple

LONGEST = 1000
"""Characters; terminals without an editor cut lines at 4095, and run what is left."""


class Word(NamedTuple):
    text: str
    """Without its quotes."""
    plain: bool
    """Had no quotes."""
    glob: bool
    """Has a `*` or `?` outside of quotes: it may become any number of file names."""


# What is left out means something to one of the shells: ! and ^ bring back history, $ and cmd's %
# are variables, {} and [] patterns, # a comment, = and @ at the start names, & and | end a command
# in cmd even within single quotes, and a backslash before a quote hides it in fish. PowerShell
# begins another word behind a closing quote, and behind a comma.
_PLAIN = r"(?:[\w./:+\-@=~%*?]|,(?![-'\"]))"
_SINGLE = r"'(?:[\w ./:,+\-@=~*?#$()\[\]{};]|\\[\w.()\[\]+*?])*'"
_DOUBLE = r'"[\w ./:,+\-@=~%*?#()\[\]{};|&<>^\']*"'
_WORD = re.compile(rf"(?![=@])({_PLAIN}*)({_SINGLE}|{_DOUBLE})?")
_BLANKS = re.compile(" +")
# Behind a blank and before what ends a word, or it would be part of one.
_TO_NOWHERE = re.compile(r"(?<= )(?:[12]?> ?/dev/null|2>&1)(?=[ ;|]|&&|$)")
_NEXT = re.compile(r"&&|\|\||;|\|(?!&)")


def commands(line: str) -> list[list[Word]] | None:
    """The words of each command, in their order; None for a line that is not understood. A line of
    blanks has no commands."""
    if len(line) > LONGEST or not all(_known(char) for char in line):
        return None
    line = line.strip(" ")
    found: list[list[Word]] = [[]]
    at = 0
    if not line:
        return []
    while at < len(line):
        if token := _BLANKS.match(line, at):
            pass
        elif token := _TO_NOWHERE.match(line, at):
            if not found[-1]:
                return None
        elif token := _NEXT.match(line, at):
            if not found[-1]:
                return None
            found.append([])
        elif (token := _WORD.match(line, at)) and token[0] and not line[at - 1 : at].strip(" ;|&"):
            plain, quoted = token[1], token[2] or ""
            glob = "*" in plain or "?" in plain
            found[-1].append(Word(plain + quoted[1:-1], not quoted, glob))
        else:
            return None
        at = token.end()
    return found if found[-1] else None


def _known(char: str) -> bool:
    """ASCII, and letters that Windows takes for no sign of ASCII."""
    if char < "\x7f":
        return char >= " "
    return char.isalpha() and ("À" <= char <= "ſ" or "Ͱ" <= char < "\ud800")
