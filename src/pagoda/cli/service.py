"""`pagoda service`: a server that systemd starts with the user's session, and starts again."""

import argparse
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.base.whole import write_whole
from pagoda.base.words import tell
from pagoda.config.server import ServerConfig

USAGE = "{install,show,status,logs,uninstall} [MODEL] [flags of serve]"
EPILOG = (
    "install writes a unit of this user and starts it: no root is needed. `loginctl enable-linger` "
    "keeps it running while you are logged out. docs/operations.md says more, and docs/deploy.md "
    "how a unit of the whole machine is installed."
)
_NAME = "pagoda.service"
# What a service of an unprivileged user can be denied, as deploy/systemd/pagoda.service has it.
_UNIT = """\
[Unit]
Description=Pagoda, a server of open models

[Service]
Type=exec
EnvironmentFile=-{environment}
# Where it was installed from, since flags may name files from there.
WorkingDirectory={folder}
ExecStart={command}
# Running requests get their 30 s: only the server is told to stop, and it ends its engines.
KillMode=mixed
TimeoutStopSec=60
Restart=on-failure
RestartSec=10
# A flag that there is not: another start would end the same.
RestartPreventExitStatus=2
UMask=0077

NoNewPrivileges=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
# Netlink tells the machine's own addresses.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# Without ~@resources: threads are bound to cores, and weights to memories.
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="ACTION ...", help=USAGE)


def run(args: argparse.Namespace) -> int:
    action, *words = args.words or [""]
    if action in ("install", "show"):
        command, keys = _checked(words)
        if action == "show":
            print(_unit(command), end="")
            return 0
        return _install(command, keys)
    if words or action not in ("status", "logs", "uninstall"):
        raise ConfigError(f"pagoda service {USAGE}: {action or 'nothing'!r} is none of these.")
    return {"status": _status, "logs": _logs, "uninstall": _uninstall}[action]()


def _checked(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of `pagoda serve` without keys, and the keys, which the unit is not to show; usage
    errors are those of `serve`."""
    from pagoda.cli.main import parse_command
    from pagoda.config.flags import engine_config, from_namespace
    from pagoda.server.http.listen import is_loopback_host

    _, args = parse_command("serve", words)
    engine_config(args)
    server = from_namespace(ServerConfig, args)
    keys = list(server.api_key)
    if len(keys) > 1:
        raise ConfigError("Several keys of a service stand in a file: --api-key-file.")
    open_to_all = not keys and server.api_key_file is None and server.uds is None
    if open_to_all and not is_loopback_host(server.host):
        keys = [f"pagoda-{secrets.token_urlsafe(32)}"]
    return _without_keys(words), keys


def _without_keys(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skipped = False
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if skipped and not word.startswith("-"):
            continue
        is_key = name in ("--api-key", "-api-key")
        skipped = is_key and "=" not in word
        if not is_key:
            kept.append(word)
    return kept


def _install(command: list[str], keys: list[str]) -> int:
    if shutil.which("systemctl") is None:
        raise ConfigError("There is no systemd here; start `pagoda serve` as this system does.")
    _systemctl("show-environment")  # fails where nothing could be started
    unit, environment = _unit_file(), _environment_file()
    unit.parent.mkdir(parents=True, exist_ok=True)
    write_whole(unit, _unit(command))
    print(tell("Wrote {unit}.", unit=unit))
    if keys:
        environment.parent.mkdir(parents=True, exist_ok=True)
        write_whole(environment, f"PAGODA_API_KEY={keys[0]}\n", mode=0o600)
        print(
            tell(
                "The key is {key}; it stands in {file}, which you alone may read.",
                key=keys[0],
                file=environment,
            )
        )
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", _NAME)
    print(
        tell(
            "The server starts; `pagoda service logs` shows how far it is, `pagoda ps` that it "
            "runs."
        )
    )
    return 0


def _uninstall() -> int:
    unit = _unit_file()
    if not unit.exists():
        raise ConfigError(f"There is no {unit}: nothing is installed.")
    _systemctl("disable", "--now", _NAME)
    unit.unlink()
    _environment_file().unlink(missing_ok=True)
    _systemctl("daemon-reload")
    print(tell("Removed {unit}, and its key. Models stay: `pagoda rm` removes them.", unit=unit))
    return 0


def _status() -> int:
    return subprocess.run(["systemctl", "--user", "status", "--no-pager", _NAME]).returncode


def _logs() -> int:
    return subprocess.run(
        ["journalctl", "--user", "--follow", "--lines=50", "-u", _NAME]
    ).returncode


def _systemctl(*words: str) -> None:
    command = ["systemctl", "--user", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(
            f"`{shlex.join(command)}` failed: {done.stderr.strip() or done.returncode}. It needs "
            "your own session of systemd: log in as this user, rather than by su or sudo."
        )


def _unit(command: Sequence[str]) -> str:
    # -P: a module in the working folder must not be imported.
    words = [sys.executable, "-P", "-m", "pagoda", "serve", "--shutdown-timeout", "30", *command]
    return _UNIT.format(
        environment=_escaped(str(_environment_file())),
        folder=_escaped(str(Path.cwd())),
        command=" ".join(map(_quoted, words)),
    )


def _quoted(word: str) -> str:
    """As systemd reads words of ExecStart."""
    quoted = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$").replace("\n", "\\n")
    return f'"{_escaped(quoted)}"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _unit_file() -> Path:
    # systemd's place, beside Pagoda's own in the user's settings.
    return env.config_dir().parent / "systemd" / "user" / _NAME


def _environment_file() -> Path:
    return env.config_dir() / "service.env"
