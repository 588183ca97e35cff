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
    # What passes from then on.
    "lastingPrograms": '"Allow for this task" lets every line pass that runs nothing but '
    "{programs}, whatever files it names, until the task ends.",
    "lastingClick": '"Allow for this task" lets every click pass that is to {what} by '
    "the model's own words, and no other one, until the task ends.",
    "lastingClose": '"Allow for this task" lets all keys pass that close a window or '
    "a program, until the task ends.",
    "lastingInput": '"Allow for this task" lets every click, key and text pass of '
    "which nothing else is to be said, until the task ends.",
    "lastingAddress": '"Allow for this task" lets addresses of {what} be typed, until '
    "the task ends.",
    "lastingAnyLine": '"Allow for this task" lets every line pass, whatever stands on it, '
    "until the task ends or pauses; commands that are known to be dangerous still ask.",
}


@dataclass(frozen=True)
class Reason:
    code: str
    """One of WORDS."""
    values: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return WORDS[self.code].format(**self.values)
