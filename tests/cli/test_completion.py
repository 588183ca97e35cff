"""What shells complete, asked of the shells themselves."""

import shutil
import subprocess

import pytest

from pagoda.cli.main import COMMANDS, main

# As bash calls the function of `complete -F`.
_ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_pagoda
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    def written(shell):
        with pytest.MonkeyPatch.context() as patch, path.open("w") as out:
            patch.setattr("sys.stdout", out)
            assert main(["completion", shell]) == 0
        return path

    path = tmp_path_factory.mktemp("completion") / "script"
    return written


@pytest.fixture(scope="module")
def bash(script):
    path = script("bash")

    def completed(*words):
        command = ["bash", "-c", _ASK, "bash", path, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    return completed


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("pagoda", "simu"), ["simulate"]),
        (("pagoda", "serve", "--max-model"), ["--max-model-len"]),
        (("pagoda", "serve", "--kv-cache-dtype", "q"), ["q4_0"]),
        (("pagoda", "doctor", "--comp"), ["--compare"]),
        (("pagoda", "bench", "star"), ["startup"]),
        (("pagoda", "bench", "startup", "--re"), ["--reps"]),
        (("pagoda", "serve", "--no-such"), []),
    ],
)
def test_bash_completes(bash, words, found):
    assert bash(*words) == found


def test_bash_knows_every_command(bash):
    assert set(bash("pagoda", "")) >= set(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_another_shell_reads_its_script(script, shell):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} (Debian: apt install {shell})")
    subprocess.run([program, "-n", script(shell)], check=True)


def test_a_shell_that_there_is_not(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "cmd"])
    assert "invalid choice: 'cmd'" in capsys.readouterr().err
