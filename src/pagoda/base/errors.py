"""Every error that Pagoda raises on purpose.

    PagodaError
      RequestError            a request that cannot be served; the server answers 4xx
        ContextLengthError    the prompt does not fit
        ModelNotFoundError    no model of that name is served here
        QueueFullError        try again later
      ConfigError             flags, environment or config file
      CheckpointError         a model file that is broken, hostile or unknown
        UnsupportedModelError a healthy file of an architecture or format not known here
      SourceError             a model that could not be fetched or found
      MissingLibraryError     another program's library that is not there, or broken
      CapacityError           memory that does not suffice; says what to lower
      EngineDeadError         the engine process ended; carries the root cause
        EngineKilledError     without a word: its exit status is all that is known

Messages are complete sentences for the user: what is wrong, then what to do.
"""


class PagodaError(Exception):
    """Base of all errors raised on purpose."""


class RequestError(PagodaError, ValueError):
    """A request that cannot be served. `param` names the offending field, if there is one."""

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param


class ContextLengthError(RequestError):
    """The prompt (with the tokens asked for) is longer than the context."""


class ModelNotFoundError(RequestError):
    """The named model is not served here."""


class QueueFullError(RequestError):
    """The queue limit is reached."""


class ConfigError(PagodaError, ValueError):
    """A flag, an environment variable or a config field has an unusable value."""


class CheckpointError(PagodaError, ValueError):
    """A model file is broken or hostile; the message names the file and the place."""


class UnsupportedModelError(CheckpointError):
    """The file is healthy, but its architecture or format is not known here."""


class SourceError(PagodaError):
    """A model could not be found or fetched."""


class MissingLibraryError(PagodaError, ImportError):
    """A library cannot be loaded; the message says how to install it."""


class CapacityError(PagodaError):
    """Memory does not suffice; the message says what to lower."""


class EngineDeadError(PagodaError):
    """The engine process ended; the message is the root cause."""


class EngineKilledError(EngineDeadError):
    """The engine process ended and could not say why."""


class EngineAsleepError(EngineDeadError):
    """The engine was put to sleep, and takes no requests until it is woken."""

    def __init__(self, name: str = "") -> None:
        of = f" of {name}" if name else ""
        super().__init__(f"The engine{of} sleeps; POST /wake_up wakes it.")
