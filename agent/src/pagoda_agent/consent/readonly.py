"""Commands that only read: lines of them are sent without a question.

A command is on the list together with its options; what is not named here is not known to be
harmless, whatever it does. Left out is also what asks name servers, and what reads lines and obeys
them (pagers, editors).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagoda_agent.consent.shell import Word, commands

_ANY = 1000


@dataclass(frozen=True)
class Options:
    flags: str = ""
    """Letters without a value."""
    valued: str = ""
    """Letters whose value is the rest of their word, or the next one."""
    long: tuple[str, ...] = ()
    """Whole words that begin with two dashes; where one ends with "=", any value follows."""
    operands: int = _ANY
    """Words that are no options, at most."""
    globs: bool = False
    """A file name that begins with a dash does no harm, as all options only read."""


_FIND = {
    "-name", "-iname", "-path", "-ipath", "-type", "-size", "-mtime", "-mmin", "-newer", "-user",
    "-group", "-perm", "-empty", "-maxdepth", "-mindepth", "-xdev", "-L", "-not", "-o", "-a",
    "-print",
}  # fmt: skip
# git without a pager, without writing its index, and without the programs that settings and files'
# attributes name for differences.
_GIT_GLOBAL = ["--no-optional-locks", "--no-pager"]
_GIT = {
    "status": (Options("bsz", long=("--short", "--branch"), operands=0), set[str]()),
    "log": (
        Options("0123456789", "n", ("--oneline", "--graph", "--all", "--stat", "--no-ext-diff",
                                    "--no-textconv", "--no-show-signature")),
        {"--no-ext-diff", "--no-textconv", "--no-show-signature"},
    ),
    "diff": (
        Options("w", "U", ("--stat", "--cached", "--name-only", "--no-ext-diff", "--no-textconv")),
        {"--no-ext-diff", "--no-textconv"},
    ),
}  # fmt: skip
_IP = re.compile(r"((-4|-6|-br) )*(a|addr|address|l|link|r|route)( show( [\w.]+)?)?")

LISTED: Mapping[str, Options] = {
    "basename": Options(operands=2),
    "cat": Options("AbEnst", globs=True),
    "cd": Options(operands=1),
    "cmp": Options("ls", operands=2),
    "cut": Options("s", "dfbc"),
    "date": Options("uR", operands=0),
    "df": Options("ahHiklPT"),
    "diff": Options("abBiNqrsuwy", "U", ("--brief", "--color")),
    "dirname": Options(),
    "du": Options("abchHkLmsx", "d", ("--max-depth=",), globs=True),
    "echo": Options("n", globs=True),
    "false": Options(operands=0),
    "file": Options("bhiL"),
    "find": Options(),
    "free": Options("bghkmtw", operands=0),
    "git": Options(),
    "grep": Options(
        "acEFGhHiIlLnoPqrRsvwxz", "emABC",
        ("--color", "--include=", "--exclude=", "--exclude-dir="), globs=True,
    ),
    "groups": Options(operands=1),
    "head": Options("0123456789qvz", "nc", globs=True),
    "hostname": Options(operands=0),
    "id": Options("gGnru", operands=1),
    "ip": Options(),
    "ls": Options("1aAbBcCdfFgGhHiIkLlmnNoqQrRsStuUXx", "", ("--color", "--all", "--full-time"),
                  globs=True),
    "lsblk": Options("abdfilmnpr", "o"),
    "lscpu": Options(operands=0),
    "md5sum": Options("bct", globs=True),
    "nproc": Options(operands=0),
    "printenv": Options(),
    "ps": Options("AadefFHjlLTuwxyZ", "pCoUgt"),
    "pwd": Options("LP", operands=0),
    "readlink": Options("efmnz"),
    "realpath": Options("emsz"),
    "sha256sum": Options("bct", globs=True),
    "sort": Options("bcCdfgiMhnrRuz", "kt", operands=1),
    "ss": Options("4aelmnoptuwx", operands=0),
    "stat": Options("fLt", "c", globs=True),
    "tail": Options("0123456789fFqvz", "nc", globs=True),
    "tr": Options("cds", operands=2),
    "true": Options(operands=0),
    "uname": Options("amnoprsv", operands=0),
    "uniq": Options("cdiu", "fsw", operands=1),
    "uptime": Options("ps", operands=0),
    "wc": Options("clLmw", globs=True),
    "which": Options("a"),
    "whoami": Options(operands=0),
}  # fmt: skip
"""By program; `_listed` has the words of `date`, `find`, `git` and `ip`."""

# Devices, other machines (on Windows, // is one), and variables of cmd.
REACHES = re.compile(r"//|/dev(/(?!null$)|$)|^/net/|%")
_DATE = re.compile(r"\+[\w%:./ +-]*")


def only_reads(line: str) -> bool:
    """Whether every shell would run nothing but commands of the list, or nothing at all."""
    found = commands(line)
    return found is not None and all(_listed(command) for command in found)


def _listed(command: Sequence[Word]) -> bool:
    name, *words = command
    options = LISTED.get(name.text) if name.plain else None
    if name.text == "date":
        words = [word for word in words if not _DATE.fullmatch(word.text)]
    texts = [word.text for word in words]
    if options is None or any(map(REACHES.search, texts)):
        return False
    globs = any(word.glob for word in words)
    match name.text:
        case "echo":  # some shells make control characters of \\e, which terminals obey
            options = None if any("\\" in text for text in texts) else options
        case "find":
            return not globs and all(text in _FIND or text[:1] != "-" for text in texts)
        case "git":
            return not globs and _git(words)
        case "ip":
            return _IP.fullmatch(" ".join(texts)) is not None
        case "sort":  # on Windows, /o writes
            options = None if any(text[:1] == "/" for text in texts) else options
    return options is not None and _fits(words, options)


def _git(words: Sequence[Word]) -> bool:
    before = [word.text for word in words[:2]]
    options, needed = _GIT.get(words[2].text if len(words) > 2 else "", (None, set[str]()))
    if options is None or sorted(before) != _GIT_GLOBAL:
        return False
    return needed <= {word.text for word in words[3:]} and _fits(words[3:], options)


def _fits(words: Sequence[Word], options: Options) -> bool:
    operands = 0
    for text, _, glob in words:
        if glob and not options.globs:
            return False
        if text.startswith("--"):
            head, equals, _ = text.partition("=")
            if head + equals not in options.long:
                return False
        elif text.startswith("-") and text != "-":
            if not _known_letters(text[1:], options):
                return False
        else:
            operands += 1
    return operands <= options.operands


def _known_letters(letters: str, options: Options) -> bool:
    for letter in letters:
        if letter in options.valued:
            return True
        if letter not in options.flags:
            return False
    return True
