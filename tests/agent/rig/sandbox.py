"""Runs lines where they can do no harm, and says what each group of them did.

Started as a program by `observed`: in namespaces of its own (users, mounts, network, processes) it
makes a root of a tmpfs with /usr and /etc bound read-only, moves into it for good, and gives the
shell no capabilities. Nothing of the machine can be written from there, and the only network is a
loopback that takes every address, so that attempts to connect are counted.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HOME = "/home/user"
_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork",
            "--kill-child")  # fmt: skip
_NEEDED = ("unshare", "mount", "setpriv", "ip", "bash", "timeout")
_DROP = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
_SECONDS = 120
_END = "all lines were run"


def observed(shell: str, groups: Sequence[Sequence[str]], setup: Iterable[str] = ()) -> list[str]:
    """What each group of lines did to files and network, in words; "" for nothing.

    `setup` are lines that prepare the home folder, where each line begins. Skips where the machine
    lets nobody make namespaces.
    """
    import pytest

    if missing := [name for name in _NEEDED if not shutil.which(name)]:
        pytest.skip(f"{', '.join(missing)} not installed")
    allowed = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"no namespaces here: {allowed.stderr.strip()}")
    request = {"shell": shell, "groups": groups, "setup": list(setup)}
    done = subprocess.run(
        [*_UNSHARE, sys.executable, "-I", __file__], input=json.dumps(request),
        capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _main() -> None:
    request = json.load(sys.stdin)
    with open("/proc/self/net/snmp") as counters:
        _enter()
        if not _run("bash", request["setup"]):
            raise SystemExit("The setup did not come to its end.")
        told = []
        for lines in request["groups"]:
            before, sent = _files(), _sent(counters)
            ended = _run(request["shell"], lines)
            after = _files()
            changed = sorted(path for path in before | after if before.get(path) != after.get(path))
            news = [f"changed {path}" for path in changed]
            news += [f"sent {_sent(counters)} after {sent}"] * (_sent(counters) != sent)
            told.append(", ".join(news + ["did not come to the end"] * (not ended)))
    json.dump(told, sys.stdout)


def _enter() -> None:
    def do(*command: str) -> None:
        subprocess.run(command, check=True)

    do("mount", "--make-rprivate", "/")
    root = Path("/tmp")  # covered from here on
    do("mount", "-t", "tmpfs", "tmpfs", str(root))
    for name in ("usr", "etc"):
        (root / name).mkdir()
        do("mount", "--bind", f"/{name}", str(root / name))
        do("mount", "-o", "remount,bind,ro,nosuid", str(root / name))
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "tmp", HOME[1:]):
        (root / name).mkdir(parents=True)
    for name in ("dev/null", "dev/urandom"):
        (root / name).touch()
        do("mount", "--bind", f"/{name}", str(root / name))
    do("ip", "link", "set", "lo", "up")
    do("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo")
    os.chroot(root)
    os.chdir("/")
    if set(os.listdir("/")) != {"usr", "etc", "bin", "sbin", "lib", "lib64", "dev", "tmp", "home"}:
        raise SystemExit("This is not the root that was made.")


def _run(shell: str, lines: Sequence[str]) -> bool:
    """Whether the shell came to the end of them."""
    script = "".join(f"{line}\ncd {HOME}\n" for line in lines) + f"echo {_END}"
    done = subprocess.run(
        [*_DROP, "timeout", "30", shell, "-c", script], cwd=HOME, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/sbin:/usr/bin", "HOME": HOME, "TERM": "xterm"},
    )  # fmt: skip
    return done.stdout.endswith(f"{_END}\n".encode())


def _files() -> dict[str, tuple[object, ...]]:
    """Everything that can be written."""
    seen: dict[str, tuple[object, ...]] = {}
    for top in (HOME, "/tmp", "/dev"):
        for folder, _, names in os.walk(top):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                facts = os.lstat(path)
                seen[path] = (facts.st_mode, facts.st_ino)
                if stat.S_ISREG(facts.st_mode):
                    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
                    seen[path] += (facts.st_mtime_ns, digest)
    return seen


def _sent(counters) -> list[str]:
    """Connections that were begun, datagrams and ICMP messages that were sent."""
    counters.seek(0)
    rows = [line.split() for line in counters]
    pairs = zip(rows[::2], rows[1::2], strict=True)
    values = {
        names[0] + name: value
        for names, row in pairs
        for name, value in zip(names, row, strict=True)
    }
    return [values["Tcp:ActiveOpens"], values["Udp:OutDatagrams"], values["Icmp:OutEchos"]]


if __name__ == "__main__":
    _main()
