"""Which actions the user is asked about first: by what they would lead to, not one by one.

What is on the screen is data and cannot change any of this. An action that cannot be judged
because nobody is there to answer is refused.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from pagoda_agent.base.errors import ActionError
from pagoda_agent.consent.lasting import Act, Lasting, offered
from pagoda_agent.consent.line import ALT, CONTROL, META, SHIFT, Danger, Line, Memory
from pagoda_agent.consent.reasons import Reason
from pagoda_agent.input.actions import (
    Action,
    Click,
    HidReset,
    InputAction,
    Key,
    Move,
    Power,
    Scroll,
    Type,
)


class Decision(StrEnum):
    ALLOW = "allow"
    CONFIRM = "confirm"
    DENY = "deny"


class Category(StrEnum):
    POWER = "power"
    """The computer's power and reset buttons, and plugging its keyboard out."""
    SECURE_KEYS = "secure-keys"
    """Ctrl+Alt+Delete, SysRq, switching consoles."""
    CLOSE = "close"
    """Closing a window or leaving a session by keys."""
    COMMAND = "command"
    """Enter behind a command line that deletes, formats, shuts down or runs what it downloads."""
    LINE = "line"
    """Enter behind any line but one that is known to only read; pasting, which may send lines."""
    COMMIT = "commit"
    """A click or Enter that, by the model's own words, pays, sends, buys, deletes or installs."""
    SECRET = "secret"
    """Typing a secret."""
    ADDRESS = "address"
    """Typing a web address outside of the allowed hosts, where such a list is set."""
    INPUT = "input"
    """Every click, drag, key and text."""


class Level(StrEnum):
    """What becomes of kinds that are not set one by one."""

    STRICT = "strict"
    DEFAULT = "default"
    TRUSTING = "trusting"


# At each level all else is asked about.
_ALLOWED: Mapping[Level, tuple[Category, ...]] = {
    Level.STRICT: (),
    Level.DEFAULT: (Category.CLOSE, Category.INPUT),
    Level.TRUSTING: (Category.CLOSE, Category.INPUT, Category.LINE),
}


def decisions(level: Level = Level.DEFAULT) -> dict[Category, Decision]:
    asked = dict.fromkeys(Category, Decision.CONFIRM)
    return {**asked, **dict.fromkeys(_ALLOWED[level], Decision.ALLOW)}


# Stems in the model's thought about a click or Enter; other languages that the models think in.
_COMMITS = re.compile(
    r"\b(pay(ing|ment)?|purchas\w*|buy(ing)?|checkout|"
    r"place (the |an |my )?order|order now|transfer\w*|"
    r"delet\w*|eras\w*|format(ting)?|wip(e|ing)|factory reset|uninstall\w*|"
    r"send(ing)?|submit(ting)? (the )?(payment|order)|publish\w*|post(ing)? (the |this |a )|"
    r"install(ing)? |agree\w* to|accept (the )?terms|unsubscribe|deactivat\w*|power(ing)? off|"
    r"shut(ting)? down|reboot\w*|sign(ing)? (the )?(contract|document))\b"
    "|支付|付款|购买|下单|转账|删除|清空|格式化|恢复出厂|卸载|发送|发布|提交订单|安装|关机|重启|注销",
    re.IGNORECASE,
)
# Of these each is asked about, whatever was allowed before.
_ONCE = re.compile(
    r"pay|purchas|buy|checkout|order|transfer|eras|format|wip|factory|power|shut|reboot|sign"
    "|支付|付款|购买|下单|转账|清空|格式化|恢复出厂|提交订单|关机|重启|注销",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"\b(?:https?|ftp)://[^\s\"'<>]+"
    r"|\b(?:[a-z0-9-]+\.)+[a-z]{2,}(?=[/:\s]|$)|\b(?:\d{1,3}\.){3}\d{1,3}(?=[/:\s]|$)",
    re.IGNORECASE,
)
# WM_CLASS of web browsers, in small letters: what is typed there is no line of a shell.
BROWSERS = frozenset({
    "brave-browser", "chromium", "chromium-browser", "epiphany", "firefox", "firefox-esr",
    "google-chrome", "librewolf", "microsoft-edge", "opera", "org.gnome.epiphany", "vivaldi-stable",
})  # fmt: skip
_FUNCTION_KEYS = {f"F{number}" for number in range(1, 13)}


@dataclass(frozen=True)
class Judgement:
    decision: Decision
    category: Category | None = None
    reason: Reason | None = None
    """For the user who is asked, and for the model that was refused."""
    offer: Lasting | None = None
    """What the user may allow beyond this action."""


class _Finding(NamedTuple):
    category: Category
    reason: Reason
    lines: tuple[Line, ...] = ()
    """Those that it would send and that are asked about."""
    act: Act | None = None
    """What a person may allow for the whole task; lines say that by themselves."""


@dataclass
class Policy:
    """Judges each action just before it is carried out; `note` then tells it what was done.

    What was typed since the last Enter is remembered, so that a command line typed in pieces is
    seen whole.
    """

    decisions: Mapping[Category, Decision] = field(default_factory=decisions)
    allowed_hosts: tuple[str, ...] = ()
    """Hosts whose addresses may be typed, with their subdomains; empty allows all."""
    secret_names: tuple[str, ...] = ()
    memory: Memory = field(default_factory=Memory)
    lasting: Lasting = Lasting()

    def judge(self, action: Action, thought: str = "", program: str | None = None) -> Judgement:
        """`program` has the keyboard's focus, as far as the driver knows."""
        found = [one for one in self._found(action, thought, program) if not self._passes(one)]
        judgements = [Judgement(self.decisions[one.category], *one[:2]) for one in found]
        worst = max(judgements, key=_strictness, default=Judgement(Decision.ALLOW))
        if worst.decision is not Decision.CONFIRM:
            return worst
        said = self._said(found)
        if len(said) != 1:
            return worst
        if lines := self._nothing_but_lines(said[0]):
            if self.lasting.covers(lines):
                return Judgement(Decision.ALLOW)
            return replace(worst, offer=offered(lines))
        act = said[0].act
        return worst if act is None else replace(worst, offer=Lasting(acts=frozenset((act,))))

    def allow(self, offer: Lasting) -> None:
        """Do not ask about the like again."""
        self.lasting = self.lasting.joined(offer)

    def erasure(self, action: Action, category: Category) -> tuple[Key, ...] | None:
        """What removes the line that the action would have sent, had that kind not been refused;
        None where that cannot be known, and nothing where there is nothing to remove."""
        line = self.memory.line
        _, sent = line.after_action(action)
        # What the model means to send or to pay is no line of a shell.
        return line.erasure() if sent and category is not Category.COMMIT else ()

    def interrupted(self) -> None:
        """A person may use the computer now."""
        self.lasting = self.lasting.after_pause()
        self.left()

    def left(self) -> None:
        """The cursor or the focus may be elsewhere now."""
        self.memory.keep(self.memory.line.left())

    def note(self, action: Action, program: str | None = None) -> None:
        """The action was carried out, while `program` had the focus."""
        self.memory.keep(_after(self.memory.line, action, program))

    @contextmanager
    def noting(self, action: Action, program: str | None = None) -> Iterator[None]:
        """Around carrying it out: of an action that ends in the middle, a part may be done."""
        line = self.memory.line
        self.memory.keep(line.amid_action(action))
        try:
            yield
        except ActionError:
            self.memory.keep(line)  # nothing was sent
            raise
        self.memory.keep(_after(line, action, program))

    def _found(self, action: Action, thought: str, program: str | None) -> Iterator[_Finding]:
        """All that it may be asked about for, the worst first."""
        match action:
            case Power(what):
                yield _Finding(Category.POWER, Reason("power", {"what": what}))
            case HidReset():
                yield _Finding(Category.POWER, Reason("replug"))
            case Type():
                yield from self._typing(action, thought, program)
            case Key():
                yield from self._pressing(action, thought, program)
            case Click(button="left") if committed := _COMMITS.search(thought):
                reason = Reason("committingClick", {"words": _quoted(committed)})
                yield _Finding(Category.COMMIT, reason, act=_lasting_click(thought))
            case Click(button="middle"):
                yield _Finding(Category.LINE, Reason("pasting"))
        if isinstance(action, InputAction) and not isinstance(action, Move | Scroll):
            yield _Finding(Category.INPUT, Reason("anyInput"), act=Act("lastingInput"))

    def _typing(self, action: Type, thought: str, program: str | None) -> Iterator[_Finding]:
        line = self.memory.line
        # The last part has not been entered yet; it is judged with the Enter that follows.
        after, sent = line.after_action(action)
        yield from _sending(sent, "typedCommand", program)
        yield from _committing(sent, thought)
        for name in self._secrets(action.text):
            yield _Finding(Category.SECRET, Reason("secret", {"name": repr(name)}))
        if self.allowed_hosts:
            typed = "\n".join(entered.text for entered in [*sent, after])
            known = {_host(address[0]) for address in _ADDRESS.finditer(line.text)}
            for address in self._foreign(typed):
                if _host(address) not in known:
                    reason = Reason("address", {"address": address[:200]})
                    host = _host(address)
                    act = Act("lastingAddress", host) if host else None
                    yield _Finding(Category.ADDRESS, reason, act=act)

    def _passes(self, one: _Finding) -> bool:
        """Whether a person allowed it for the whole task."""
        asks = self.decisions[one.category] is Decision.CONFIRM
        return asks and one.act is not None and one.act in self.lasting.acts

    def _said(self, found: list[_Finding]) -> list[_Finding]:
        """All that is to be said of the action; that it is one, where that is asked about."""
        asks_always = self.decisions[Category.INPUT] is not Decision.ALLOW
        return [one for one in found if one.category is not Category.INPUT or asks_always]

    def _nothing_but_lines(self, one: _Finding) -> tuple[Line, ...]:
        """The lines that the user is asked about, where nothing else is to be said of them; none
        otherwise."""
        lines = one.lines
        if any([*self._secrets(line.whole), *self._foreign(line.whole)] for line in lines):
            return ()
        return lines

    def _secrets(self, text: str) -> Iterator[str]:
        """The names of those that are in it."""
        return (name for name in self.secret_names if f"{{{{secret:{name}}}}}" in text)

    def _foreign(self, text: str) -> Iterator[str]:
        """Addresses outside of the allowed hosts, where there are any."""
        for address in _ADDRESS.finditer(text if self.allowed_hosts else ""):
            host = _host(address[0])
            if not any(host == name or host.endswith(f".{name}") for name in self.allowed_hosts):
                yield address[0]

    def _pressing(self, action: Key, thought: str, program: str | None) -> Iterator[_Finding]:
        _, sent = self.memory.line.after_action(action)
        yield from _sending(sent, "enteredCommand", program)
        keys = set(action.codes)
        control, alt = bool(keys & CONTROL), bool(keys & ALT)
        named = {"keys": "+".join(action.codes)}
        if (control and alt and keys & ({"Delete", "Backspace"} | _FUNCTION_KEYS)) or (
            alt and "PrintScreen" in keys
        ):
            yield _Finding(Category.SECURE_KEYS, Reason("systemKeys", named))
        if (alt and "F4" in keys) or (control and keys & {"KeyQ", "KeyW"}):
            yield _Finding(Category.CLOSE, Reason("closingKeys", named), act=Act("lastingClose"))
        yield from _committing(sent, thought)
        pastes = ("KeyV" in keys and keys & (CONTROL | META)) or ("Insert" in keys and keys & SHIFT)
        if pastes and program not in BROWSERS:
            yield _Finding(Category.LINE, Reason("pasting"))


def _strictness(judgement: Judgement) -> int:
    return [Decision.ALLOW, Decision.CONFIRM, Decision.DENY].index(judgement.decision)


def _after(line: Line, action: Action, program: str | None) -> Line:
    after, _ = line.after_action(action)
    # A terminal's line is not begun anew by what a browser was sent.
    return after.left() if program in BROWSERS and not after.text else after


def _sending(sent: list[Line], code: str, program: str | None) -> Iterator[_Finding]:
    if danger := next(filter(None, (line.danger() for line in sent)), None):
        yield _Finding(Category.COMMAND, _running(code, danger))
    # Behind the first line, something else may have the focus.
    to_unknown = sent[1:] if program in BROWSERS else sent
    if asked := tuple(line for line in to_unknown if not line.only_reads()):
        yield _Finding(Category.LINE, _unlisted(asked[0]), asked)


def _committing(sent: list[Line], thought: str) -> Iterator[_Finding]:
    if sent and (committed := _COMMITS.search(thought)):
        yield _Finding(Category.COMMIT, Reason("committingEnter", {"words": _quoted(committed)}))


def _unlisted(line: Line) -> Reason:
    if not line.shown:
        return Reason("unseenLine")
    return Reason("unlistedLine" if line.known else "unsureLine", {"line": line.shown})


def _running(code: str, danger: Danger) -> Reason:
    return Reason(code, {"line": danger.shown, "command": repr(danger.command.strip()[:60])})


def _host(address: str) -> str:
    try:
        return urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:  # brackets that are not an IPv6 address
        return ""


def _lasting_click(thought: str) -> Act | None:
    """What clicks like this one are; none where a word is among those that are asked about each
    time, or where there are several: one of them may have been allowed, the others were not."""
    words = {_quoted(match).lower() for match in _COMMITS.finditer(thought)}
    if len(words) != 1 or _ONCE.search(word := words.pop()):
        return None
    return Act("lastingClick", word)


def _quoted(match: "re.Match[str]") -> str:
    return repr(match[0].strip()[:60])
