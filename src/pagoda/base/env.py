"""Every environment variable that Pagoda reads: type, default, documentation.

The only place that touches `os.environ`. A value that cannot be read is an error, never ignored.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pagoda.base.errors import ConfigError


class Variable(NamedTuple):
    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("write 1 or 0")


def _language(text: str) -> str:
    if text not in ("en", "zh"):
        raise ValueError("write en or zh")
    return text


VARIABLES = {
    variable.name: variable
    for variable in (
        Variable("PAGODA_CACHE", Path, None, "Folder of Pagoda's own files; ~/.cache/pagoda."),
        Variable(
            "PAGODA_API_KEY",
            str,
            None,
            "Key that clients of `pagoda serve` must send, and that `pagoda agent` sends to its "
            "model's server.",
        ),
        Variable(
            "PAGODA_SPEC_TOKENS",
            int,
            None,
            "Tokens that a draft head guesses at a time, whatever --mode says.",
        ),
        Variable("PAGODA_DEBUG", _flag, False, "1 shows the traceback of every error."),
        Variable(
            "PAGODA_LANG",
            _language,
            None,
            "Language of help, the doctor and errors: en or zh. The flag --lang wins over it; "
            "without both it is the locale's, English unless that is Chinese.",
        ),
        Variable("LC_ALL", str, "", "The locale, whose language is spoken where it is Chinese."),
        Variable("LC_MESSAGES", str, "", "The locale's language, where LC_ALL is unset."),
        Variable("LANG", str, "", "The locale, where LC_ALL and LC_MESSAGES are unset."),
        Variable(
            "PAGODA_CPU_ISA",
            str,
            None,
            "Best native kernels to use: amx, avx512, avx512vnni (without BF16), avxvnni, avx2, "
            "neondot, neon, generic, or none; the CPU decides if unset.",
        ),
        Variable(
            "PAGODA_SYMMETRIC_MEMORY",
            _flag,
            True,
            "0 leaves all sums between GPUs that share a model to NCCL.",
        ),
        Variable("XDG_CONFIG_HOME", Path, None, "Where settings live; ~/.config."),
        Variable("XDG_CACHE_HOME", Path, None, "Where caches live; ~/.cache."),
        Variable("HF_ENDPOINT", str, None, "Mirror of the Hugging Face hub."),
        Variable("HF_TOKEN", str, None, "Access token for the Hugging Face hub."),
        Variable("HF_HUB_OFFLINE", _flag, False, "1 never asks the hub."),
        Variable("MODELSCOPE_ENDPOINT", str, None, "Mirror of ModelScope."),
        Variable("MODELSCOPE_API_TOKEN", str, None, "Access token for ModelScope."),
        Variable(
            "CC",
            str,
            None,
            "C compiler of Triton 3.6, which launches kernels on GPUs through code "
            "that it compiles; gcc or clang if unset.",
        ),
        Variable("CUDA_VISIBLE_DEVICES", str, None, "NVIDIA GPUs that programs may use, as 0,1."),
        Variable(
            "NCCL_SOCKET_IFNAME",
            str,
            None,
            "Where ranks on GPUs meet; lo in Pagoda where they share a machine.",
        ),
        Variable("OMP_WAIT_POLICY", str, None, "What idle OpenMP threads do; PASSIVE in Pagoda."),
        Variable(
            "OPENBLAS_THREAD_TIMEOUT",
            str,
            None,
            "How long idle threads of numpy's matrix products spin: 2 to the power of this in "
            "ticks of the CPU's clock; 4 in Pagoda.",
        ),
        Variable(
            "OPENCODE_CONFIG_CONTENT",
            str,
            None,
            "Settings of opencode as JSON; `pagoda launch opencode` adds its own to them.",
        ),
        Variable(
            "PAGODA_KV_SECRET",
            str,
            None,
            "What engines prove to each other that move KV blocks (`--kv-transfer-config`); needed "
            "for addresses other than this machine's own.",
        ),
        Variable(
            "PAGODA_NODES_SECRET",
            str,
            None,
            "What the machines that share a model prove to each other (`--nnodes`); needed for "
            "addresses other than this machine's own.",
        ),
        Variable(
            "PYTORCH_ALLOC_CONF",
            str,
            None,
            "How torch allocates memory on a GPU; "
            "expandable_segments:True in Pagoda, unless this or PYTORCH_CUDA_ALLOC_CONF is set.",
        ),
        Variable(
            "PYTORCH_CUDA_ALLOC_CONF",
            str,
            None,
            "The older name of PYTORCH_ALLOC_CONF.",
        ),
        Variable(
            "PAGODA_RAY_GROUP",
            str,
            None,
            "Set by Pagoda in a replica of Ray Serve: the placement group (hex) of its ranks.",
        ),
        Variable(
            "RAY_ADDRESS",
            str,
            None,
            "Ray cluster of `--distributed-executor-backend ray`, as 10.0.0.1:6379; by default the "
            "one that this machine is part of.",
        ),
        Variable("VLLM_API_KEY", str, None, "Read like PAGODA_API_KEY, for moved deployments."),
    )
}


def get(name: str) -> Any:
    """The variable's parsed value, or its default when unset or empty.

    Raises ConfigError when it is set to something unreadable, KeyError for an unlisted name.
    """
    variable = VARIABLES[name]
    text = os.environ.get(name, "")
    if text == "":
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ConfigError(f"The variable {name} is {text!r}: {error}.") from error


def with_prefix(prefix: str) -> dict[str, str]:
    """Every variable whose name begins so, by the rest of its name; for names that users make."""
    return {
        name.removeprefix(prefix): value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def of_user(name: str) -> str | None:
    """A variable that a file of the user's names; None where it is not set."""
    return os.environ.get(name)


def is_empty(name: str) -> bool:
    """True where the variable is set to nothing, which `get` takes for unset."""
    return os.environ.get(name) == ""


def cache_dir() -> Path:
    """Folder of Pagoda's own files (models, sockets' parents); not created here."""
    own = get("PAGODA_CACHE")
    if own is not None:
        return Path(own)
    base = get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pagoda"


def config_dir() -> Path:
    """Folder of Pagoda's settings; not created here."""
    return Path(get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pagoda"


def set_default(name: str, value: str) -> None:
    """Set a listed variable that is unset, for libraries of this process that read it."""
    if name not in VARIABLES:
        raise KeyError(name)
    os.environ.setdefault(name, value)


def put(name: str, value: str) -> None:
    """Set a listed variable, whatever it was, for libraries and children of this process."""
    if name not in VARIABLES:
        raise KeyError(name)
    os.environ[name] = value


def child_environment(**changes: str) -> dict[str, str]:
    """A copy of this process's environment with changes, for a child process."""
    return {**os.environ, **changes}
