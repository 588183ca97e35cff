"""`pagoda service`: systemd checks its unit, and a systemctl writes down what it is told."""

import shutil
import stat
import subprocess

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli import service
from pagoda.cli.main import main


@pytest.fixture
def home(tmp_path, monkeypatch):
    """With a systemctl that does nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    systemctl = programs / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def unit(home):
    return (home / "config/systemd/user/pagoda.service").read_text()


def key_file(home):
    return home / "config/pagoda/service.env"


def test_a_service_of_this_machine_alone_needs_no_key(home, capsys):
    assert main(["service", "install", "smollm2", "--port", "9000"]) == 0
    assert '"serve" "--shutdown-timeout" "30" "smollm2" "--port" "9000"' in unit(home)
    assert not key_file(home).exists()
    assert (home / "said").read_text().splitlines() == [
        "--user show-environment", "--user daemon-reload", "--user enable --now pagoda.service",
    ]  # fmt: skip
    assert "pagoda service logs" in capsys.readouterr().out


def test_one_that_is_open_to_the_network_gets_a_key(home, capsys):
    assert main(["service", "install", "smollm2", "--host", "0.0.0.0"]) == 0
    name, key = key_file(home).read_text().strip().split("=")
    assert name == "PAGODA_API_KEY" and key in capsys.readouterr().out
    assert stat.S_IMODE(key_file(home).stat().st_mode) == 0o600
    assert key not in unit(home)


@pytest.mark.parametrize(
    "words", [["--api-key", "secret"], ["--api-key=secret"], ["--api_key", "secret"]]
)
def test_a_key_that_was_given_is_not_in_the_unit(home, words):
    assert main(["service", "install", "m.gguf", *words, "--port", "9000"]) == 0
    assert key_file(home).read_text() == "PAGODA_API_KEY=secret\n"
    assert "secret" not in unit(home) and '"m.gguf" "--port" "9000"' in unit(home)


def test_a_model_behind_a_key_stays(home):
    assert main(["service", "install", "--api-key=secret", "m.gguf"]) == 0
    assert '"m.gguf"' in unit(home) and "secret" not in unit(home)


def test_files_are_named_from_where_it_was_installed(home, monkeypatch):
    (home / "50% models").mkdir()
    monkeypatch.chdir(home / "50% models")
    assert main(["service", "install", "./m.gguf"]) == 0
    assert f"WorkingDirectory={home}/50%% models\n" in unit(home)


def test_flags_that_there_are_not_are_refused_now(home):
    with pytest.raises(SystemExit) as exit_info:
        main(["service", "install", "smollm2", "--prot", "9000"])
    assert exit_info.value.code == 2
    assert not (home / "config").exists()


def test_uninstalling_leaves_nothing(home):
    main(["service", "install", "smollm2", "--host", "0.0.0.0"])
    assert main(["service", "uninstall"]) == 0
    assert not key_file(home).exists()
    assert list((home / "config/systemd/user").iterdir()) == []
    assert main(["service", "uninstall"]) == 1


def test_a_systemd_that_says_no_is_told(home, capsys):
    (home / "bin/systemctl").write_text("#!/bin/sh\necho Failed to connect to bus >&2; exit 1\n")
    assert main(["service", "install", "smollm2"]) == 1
    assert "Failed to connect to bus. It needs your own session" in capsys.readouterr().err
    assert not (home / "config").exists()


def test_without_systemd_nothing_is_written(home, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["service", "install", "smollm2"]) == 1
    assert "no systemd here" in capsys.readouterr().err
    assert not (home / "config").exists()


@pytest.mark.parametrize("words", [[], ["start"], ["status", "smollm2"]])
def test_other_actions_are_refused(words):
    with pytest.raises(ConfigError):
        service.run(type("Args", (), {"words": words})())


def test_systemd_knows_the_unit(home, capsys, monkeypatch):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    odd = '50%of $HOME \\ and "quotes".gguf'
    assert main(["service", "show", odd, "--served-model-name", "a b"]) == 0
    text = capsys.readouterr().out
    assert '"50%%of $$HOME \\\\ and \\"quotes\\".gguf" "--served-model-name" "a b"' in text
    path = home / "pagoda.service"
    path.write_text(text)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    done = subprocess.run(
        [analyze, "--user", "verify", "--man=no", path], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
