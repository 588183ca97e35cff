"""Which actions the user is asked about first: by what they would lead to, not one by one.

What is on the screen is data and cannot change any of this. An action that cannot be judged
because nobody is there to answer is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from pagoda.agent.actions import Action, Click, HidReset, Key, Power, Type
from pagoda.agent.keys import KEYS
from pagoda.agent.reasons import Reason


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
    COMMIT = "commit"
    """A click or Enter that, by the model's own words, pays, sends, buys, deletes or installs."""
    SECRET = "secret"
    """Typing a secret."""
    ADDRESS = "address"
    """Typing a web address outside of the allowed hosts, where such a list is set."""


DEFAULTS: Mapping[Category, Decision] = {
    Category.POWER: Decision.CONFIRM,
    Category.SECURE_KEYS: Decision.CONFIRM,
    Category.CLOSE: Decision.ALLOW,
    Category.COMMAND: Decision.CONFIRM,
    Category.COMMIT: Decision.CONFIRM,
    Category.SECRET: Decision.CONFIRM,
    Category.ADDRESS: Decision.CONFIRM,
}

_COMMANDS = re.compile(
    r"""
    \brm\s+(-\S*[rRf]|--recursive|--force) | \brmdir\s+/s | \bdel\s+.*/[sqf]\b | \brd\s+/s
    | \bremove-item\b.*-(recurse|force) | \bshred\b | \bwipefs\b | \bblkdiscard\b
    | \bmkfs | \bmke2fs\b | \bmkswap\b | \bfdisk\b | \bparted\b | \bdiskpart\b
    | \bformat(\.com)?\s+[a-z]:
    | \bdd\b.*\bof= | >\s*/dev/(sd|nvme|vd|hd|mmcblk) | \bhdparm\b | \bcryptsetup\b
    | \b(drop|truncate)\s+(table|database|schema)\b | \bdelete\s+from\b
    | \b(shutdown|reboot|poweroff|halt)\b | \binit\s+[06]\b
    | \bsystemctl\s+(stop|disable|mask|isolate)\b
    | \b(stop|restart)-computer\b | :\(\)\s*\{ | \bkill(all)?\s+(-\S+\s+)*(-1|-9\s+1)\b
    | \b(curl|wget|iwr|irm|invoke-webrequest)\b.*(\||;|&&|\$\(|`)\s*(sudo\s+)?
      \w*(sh|iex|python\d?|perl)\b
    | \bbase64\b.*-d.*\|\s*(sudo\s+)?\w*sh\b | \beval\b | \biex\b
    | \bchmod\s+(-\S*R\S*\s+)?0?777\s+/ | \bch(own|mod|grp)\s+-\S*R\S*\s+\S+\s+/
    | \bmv\b.*\s/dev/null\b
    | \buser(del|mod)\b | (^|[;&|\s])passwd(\s|$)
    | \bvisudo\b | \bnet\s+user\b | \breg\s+delete\b | \bbcdedit\b
    | \bcrontab\s+-r\b | \biptables\s+-F | \bnft\s+flush\b | \bufw\s+(disable|reset)\b
    | \b(apt|apt-get|dnf|yum|pacman|zypper)\s+.*(remove|purge|autoremove|-R\w*)\b
    | \bgit\s+(push\s+.*(-f\b|--force)|reset\s+--hard|clean\s+-\S*f) | \bterraform\s+destroy\b
    | \bkubectl\s+delete\b | \bdocker\s+.*(prune|\brm\b) | \bfind\b.*\s-(delete|exec)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
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
_ADDRESS = re.compile(
    r"\b(?:https?|ftp)://[^\s\"'<>]+|\b(?:[a-z0-9-]+\.)+[a-z]{2,}(?=[/:\s]|$)", re.I
)
_ENTERS = {"Enter", "NumpadEnter"}
_CONTROL = {"ControlLeft", "ControlRight"}
_ALT = {"AltLeft", "AltRight"}
_FUNCTION_KEYS = {f"F{number}" for number in range(1, 13)}
_RECALL = {"ArrowUp", "ArrowDown", "PageUp"}
_MODIFIERS = {code for code, key in KEYS.items() if key.modifier}


@dataclass(frozen=True)
class Judgement:
    decision: Decision
    category: Category | None = None
    reason: Reason | None = None
    """For the user who is asked, and for the model that was refused."""


@dataclass
class Policy:
    """Judges each action just before it is carried out; `note` then tells it what was done.

    It remembers what was typed since the last Enter, so that a command line typed in pieces is
    seen whole.
    """

    decisions: Mapping[Category, Decision] = field(default_factory=lambda: DEFAULTS)
    allowed_hosts: tuple[str, ...] = ()
    """Hosts whose addresses may be typed, with their subdomains; empty allows all."""
    secret_names: tuple[str, ...] = ()
    _line: str = ""
    _earlier: str = ""
    """The last dangerous line that was entered: a shell's history brings it back."""
    _recalled: bool = False
    """Keys that bring back earlier lines were pressed since the last Enter."""

    def judge(self, action: Action, thought: str = "") -> Judgement:
        found = self._category(action, thought)
        if found is None:
            return Judgement(Decision.ALLOW)
        category, reason = found
        return Judgement(self.decisions.get(category, DEFAULTS[category]), category, reason)

    def note(self, action: Action) -> None:
        """The action was carried out."""
        match action:
            case Type(text):
                *lines, self._line = (self._line + text).split("\n")
                self._remember(lines)
            case Key(codes, repeat):
                self._note_key(codes, repeat)

    def _note_key(self, codes: tuple[str, ...], repeat: int) -> None:
        keys = set(codes)
        plain = [code for code in codes if code not in _MODIFIERS]
        if _ENTERS & keys:
            self._remember([self._line])
            self._line, self._recalled = "", False
        elif _RECALL & keys or (_CONTROL & keys and keys & {"KeyP", "KeyR"}):
            self._recalled = True
        elif plain == ["Backspace"]:
            self._line = self._line[:-repeat]
        elif not _CONTROL & keys:
            self._line += "".join(map(_letter, plain)) * repeat

    def _remember(self, lines: list[str]) -> None:
        for line in lines:
            if _COMMANDS.search(line):
                self._earlier = line

    def _category(self, action: Action, thought: str) -> tuple[Category, Reason] | None:
        match action:
            case Power(what):
                return Category.POWER, Reason("power", {"what": what})
            case HidReset():
                return Category.POWER, Reason("replug")
            case Type(text):
                return self._typing(text)
            case Key(codes):
                return self._pressing(codes, thought)
            case Click(button="left") if committed := _COMMITS.search(thought):
                return Category.COMMIT, Reason("committingClick", {"words": _quoted(committed)})
        return None

    def _typing(self, text: str) -> tuple[Category, Reason] | None:
        for name in self.secret_names:
            if f"{{{{secret:{name}}}}}" in text:
                return Category.SECRET, Reason("secret", {"name": repr(name)})
        # The last part has not been entered yet; it is judged with the Enter that follows.
        *entered, _ = (self._line + text).split("\n")
        for line in entered:
            if command := _COMMANDS.search(line):
                return Category.COMMAND, _running("typedCommand", line, command)
        if self.allowed_hosts:
            for address in _ADDRESS.finditer(text):
                if not self._allows(address[0]):
                    return Category.ADDRESS, Reason("address", {"address": address[0][:200]})
        return None

    def _allows(self, address: str) -> bool:
        host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
        return any(host == name or host.endswith(f".{name}") for name in self.allowed_hosts)

    def _pressing(self, codes: tuple[str, ...], thought: str) -> tuple[Category, Reason] | None:
        keys = set(codes)
        control, alt = bool(keys & _CONTROL), bool(keys & _ALT)
        named = {"keys": "+".join(codes)}
        if (control and alt and keys & ({"Delete", "Backspace"} | _FUNCTION_KEYS)) or (
            alt and "PrintScreen" in keys
        ):
            return Category.SECURE_KEYS, Reason("systemKeys", named)
        if (alt and "F4" in keys) or (control and keys & {"KeyQ", "KeyW"}):
            return Category.CLOSE, Reason("closingKeys", named)
        if not keys & _ENTERS:
            return None
        line = self._earlier if self._recalled else self._line
        if command := _COMMANDS.search(line):
            return Category.COMMAND, _running("enteredCommand", line, command)
        if committed := _COMMITS.search(thought):
            return Category.COMMIT, Reason("committingEnter", {"words": _quoted(committed)})
        return None


def _running(code: str, line: str, command: "re.Match[str]") -> Reason:
    return Reason(code, {"line": repr(line.strip()[:200]), "command": _quoted(command)})


def _quoted(match: "re.Match[str]") -> str:
    return repr(match[0].strip()[:60])


def _letter(code: str) -> str:
    """What a key types without Shift on a US keyboard; nothing for others."""
    keysym = KEYS[code].keysym
    return chr(keysym) if 0x20 <= keysym < 0x7F else ""
