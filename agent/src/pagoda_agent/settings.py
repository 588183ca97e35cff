"""What a user may set, kept in one file that only its owner can read."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pagoda_agent.base.errors import ConfigError, sentence
from pagoda_agent.base.whole import write_whole
from pagoda_agent.consent.policy import Category, Decision, Level, Policy, decisions
from pagoda_agent.dialects.rules import check_prompt
from pagoda_agent.drivers.address import require_private, without_password
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.profiles import Profile, profile_for
from pagoda_agent.task.budget import Budget, Caps, Price, Spent

_SHOWN = 4
"""Last characters of a key that are shown."""
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
_MISFIT = re.compile(r"Expected `(int|float|str|bool)\b.* - at `\$\.(\w+)`")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults fit Pagoda's own server on this machine."""

    driver: str = ""
    """URL of the computer."""
    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = ""
    """Empty: the server's only or first one."""
    api_key: str = ""
    api: str = ""
    """openai, responses, anthropic or dashscope; empty: the profile's."""
    profile: str = ""
    """How the model speaks; empty: by its name."""
    ca_file: str = ""
    insecure: bool = False
    prompt: str = ""
    """What the model should know of this computer and its user, for every task."""
    system_prompt: str = ""
    """In place of the built-in one (dialects/rules.py), with its placeholder for how actions are
    written; empty: the built-in one."""
    images_kept: int = 3
    max_rounds: int = 20
    max_tokens: int | None = None
    max_cost: float | None = None
    max_minutes: float | None = None
    price_input: float | None = None
    """For a million tokens, as `max_cost` counts."""
    price_output: float | None = None
    price_cached: float | None = None
    reply_tokens: int = 4096
    reply_seconds: float = 600.0
    """For one reply, with what is tried again."""
    consent: Level = Level.DEFAULT
    policy: dict[Category, Decision] = {}
    """Decisions on kinds of actions that do not follow the level."""
    allowed_hosts: list[str] = []
    consent_seconds: float = 120.0
    answer_seconds: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("images_kept", "max_rounds", "reply_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not self.reply_seconds > 0:
            raise ValueError("reply_seconds must be more than 0")
        if self.system_prompt:
            check_prompt(self.system_prompt)
        self.budget()

    def model_profile(self, model: str) -> Profile:
        """Raises ConfigError for a profile that is not known."""
        changes: dict[str, Any] = {"pictures": self.images_kept}
        if self.api:
            changes["api"] = self.api
        return profile_for(model, self.profile or None, **changes)

    def endpoint(self, model: str) -> Endpoint:
        return Endpoint(
            self.base_url,
            model,
            self.api_key or None,
            ca_file=Path(self.ca_file) if self.ca_file else None,
            insecure=self.insecure,
            # A slow model is silent while it reads the pictures, and would begin again if asked so.
            read_seconds=self.reply_seconds,
            total_seconds=self.reply_seconds,
            max_tokens=self.reply_tokens,
        )

    def budget(self, spent: Spent | None = None) -> Budget:
        price = None
        if self.price_input is not None and self.price_output is not None:
            price = Price(self.price_input, self.price_output, self.price_cached)
        seconds = None if self.max_minutes is None else 60 * self.max_minutes
        caps = Caps(self.max_rounds, self.max_tokens, self.max_cost, seconds)
        return Budget(caps, price, spent)

    def make_policy(self, secret_names: tuple[str, ...]) -> Policy:
        decided = {**decisions(self.consent), **self.policy}
        return Policy(decided, tuple(self.allowed_hosts), secret_names)

    def shown(self) -> dict[str, Any]:
        """For the settings page: all but the key, of which only its end, and the computer's
        password; every kind of action, empty where it follows the level."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        fields["driver"] = without_password(self.driver)
        fields["policy"] = {**dict.fromkeys(Category, ""), **self.policy}
        key = fields["api_key"]
        fields["api_key"] = f"...{key[-_SHOWN:]}" if len(key) > 2 * _SHOWN else "set" * bool(key)
        return fields


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """With some fields set otherwise; ConfigError, naming the field, for values that do not fit.

    A key that is not among the changes stays.
    """
    fields = {**msgspec.to_builtins(settings), **changes}
    try:
        return msgspec.convert(fields, Settings)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise ConfigError(f"These settings do not fit: {_in_words(error)}.") from None


def load(path: Path) -> Settings:
    """Defaults where there is no file. Raises ConfigError for one that cannot be used, or that
    others can read: it may hold a key and a password."""
    try:
        require_private(path)
        data = path.read_bytes()
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return msgspec.json.decode(data, type=Settings)
    except (msgspec.MsgspecError, ConfigError) as error:
        raise ConfigError(
            f"{path} is not a file of settings: {sentence(_in_words(error))}"
        ) from error


def _in_words(error: Exception) -> str:
    """With the field's name as it is: the page looks for it."""
    text = str(error)
    if misfit := _MISFIT.fullmatch(text):
        kind, name = misfit.groups()
        text = f"{name} must be {_KINDS[kind]}"
    elif text.endswith("at `$.consent`"):
        text = "consent must be strict, default or trusting"
    return text


def save(settings: Settings, path: Path) -> None:
    """Whole or not at all, and readable by its owner only. Raises ConfigError where it cannot be
    written."""
    data = msgspec.json.format(msgspec.json.encode(settings))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, data + b"\n", 0o600)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. What was changed holds until the agent "
            "ends; make room there and save it again."
        ) from error
