"""Why the user is asked about an action: a code with its values.

Worded here in English; chinese.py has the same sentences for the page and for exports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

WORDS: Mapping[str, str] = {
    "power": "It would use the computer's power buttons ({what}).",
    "replug": "It would unplug the computer's keyboard and mouse.",
    "secret": "It would type the secret {name}.",
    "typedCommand": "It would run {line} ({command}).",
    "enteredCommand": "Enter would run {line} ({command}).",
    "unlistedLine": "It would send the line {line}, which is not among those that only read.",
    "unsureLine": "It would send {line}, and nobody knows what else stands on that line.",
    "unseenLine": "It would send a line, and nobody knows what stands on it.",
    "pasting": "It would paste, and a paste may send lines.",
    "committingClick": "By its own words this click is to {words}.",
    "committingEnter": "By its own words this Enter is to {words}.",
    "address": "{address} is not among the allowed hosts.",
    "systemKeys": "{keys} speaks to the operating system itself.",
    "closingKeys": "{keys} closes a window or a program.",
    "anyInput": "The settings say to ask about every click, key and text.",
    "warning": "The model's provider warns: {text}",
    # What passes once a person says not to be asked again.
    "lastingPrograms": '"Do not ask again" lets every line pass that runs nothing but {programs}, '
    "whatever files it names, until the task ends.",
    "lastingAnyLine": '"Do not ask again" lets every line pass, whatever stands on it, until the '
    "task ends or pauses; commands that are known to be dangerous still ask.",
}


@dataclass(frozen=True)
class Reason:
    code: str
    """One of WORDS."""
    values: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return WORDS[self.code].format(**self.values)
