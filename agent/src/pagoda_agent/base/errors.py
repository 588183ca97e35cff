"""What can go wrong between the agent, its model and the computer it operates."""

from collections.abc import Sequence


class AgentError(Exception):
    """Base of all errors raised on purpose: a sentence for the person, or for the model."""


class ConfigError(AgentError, ValueError):
    """A flag, an environment variable or a setting has an unusable value."""


class ActionError(AgentError, ValueError):
    """A model's action that cannot be carried out as it was written; nothing was sent.

    The message goes back to the model, so it says what was wrong with which value.
    """


class UntypeableError(ActionError):
    """Text with characters that the driver has no way to type; none of it was typed."""

    def __init__(self, characters: Sequence[str], driver: str):
        self.characters = tuple(dict.fromkeys(characters))
        listed = " ".join(f"{char!r} (U+{ord(char):04X})" for char in self.characters[:20])
        super().__init__(
            f"The {driver} driver cannot type {listed}; nothing was typed. "
            "Use other characters, or another way to enter them."
        )


class DriverError(AgentError):
    """The computer could not be reached or answered wrongly."""


class ConnectionLostError(DriverError):
    """The connection ended in the middle; what was under way may be done in part.

    The driver has connected again and released everything it held, or `close` will.
    """


class NoSignalError(DriverError):
    """The computer shows no picture: it is off, asleep, or its cable is out."""


class LoginError(DriverError):
    """User name, password or key were refused."""


class UnsupportedActionError(ActionError):
    """An action that this driver has no means for (see its capabilities)."""


class ModelError(AgentError):
    """The model's server failed for good: retries are over, or none would help."""


def sentence(text: str) -> str:
    """With the one sign at its end that it may have already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
