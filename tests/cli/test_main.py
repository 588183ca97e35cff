"""The command itself: overview, version, errors, and what it imports."""

import importlib
import os
import subprocess
import sys

import pytest

from pagoda.base.errors import SourceError
from pagoda.cli.main import COMMANDS, main
from pagoda.version import __version__


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pagoda {__version__}\n"


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_nothing_is_a_usage_error():
    assert main([]) == 2


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["serv"]) == 2
    assert "did you mean 'serve'" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "ours"), [("run", "chat"), ("ls", "list"), ("start", "serve")])
def test_a_command_of_another_program_names_ours(word, ours, capsys):
    assert main([word]) == 2
    assert f"did you mean {ours!r}" in capsys.readouterr().err


def test_a_command_like_no_other_is_answered_with_all_of_them(capsys):
    assert main(["generate"]) == 2
    error = capsys.readouterr().err
    assert "did you mean" not in error
    assert all(name in error for name in COMMANDS)


@pytest.mark.parametrize("model", ["smollm2", "Qwen/Qwen3-8B", "Qwen3-8B"])
def test_a_model_without_a_command_is_answered_with_those_for_it(model, capsys):
    assert main([model]) == 2
    error = capsys.readouterr().err
    assert f"`pagoda serve {model}`" in error and f"`pagoda chat {model}`" in error


def test_a_folder_of_a_model_is_one_and_others_are_not(tmp_path, capsys):
    main([str(tmp_path)])
    assert "there is no command" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    main([str(tmp_path)])
    assert "is a model" in capsys.readouterr().err


def test_a_flag_without_a_command_is_answered_with_one(capsys):
    assert main(["--port", "80"]) == 2
    assert "`pagoda serve --port`" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["-v", "-V", "version"])
def test_other_words_for_the_version(word, capsys):
    assert main([word]) == 0
    assert capsys.readouterr().out == f"pagoda {__version__}\n"


def test_help_of_a_command_in_the_other_order(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["help", "serve"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("usage: pagoda serve")


def test_the_package_completes_its_names_without_loading_them():
    script = "import pagoda, sys; print({'LLM', 'SamplingParams'} <= set(dir(pagoda)))"
    script += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([name, "--help"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pagoda {name}")


@pytest.mark.parametrize("kind", ["serve", "latency", "throughput", "serving-cost", "llama-bench"])
def test_every_bench_has_help(kind, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", kind, "--help"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pagoda bench {kind}")


def test_an_unknown_bench_names_the_known(capsys):
    assert main(["bench", "foo"]) == 1
    assert "llama-bench" in capsys.readouterr().err
    assert main(["bench", "srve"]) == 1
    assert "did you mean 'serve'?" in capsys.readouterr().err


@pytest.fixture
def failing(monkeypatch):
    def fail_with(error):
        def run(args):
            raise error

        monkeypatch.setattr(importlib.import_module("pagoda.cli.pull"), "run", run)

    return fail_with


def test_an_error_is_one_line(failing, capsys):
    failing(SourceError("The hub cannot be reached; check the network."))
    assert main(["pull", "x/y"]) == 1
    error = capsys.readouterr().err
    assert error == "pagoda pull: The hub cannot be reached; check the network.\n"


def test_a_file_that_cannot_be_written_is_named(failing, capsys):
    error = PermissionError(13, "Permission denied", "/keys")
    error.filename2 = None  # as `whole_file` leaves it
    failing(error)
    assert main(["pull", "x/y"]) == 1
    assert capsys.readouterr().err == "pagoda pull: /keys: Permission denied.\n"


def test_a_bug_is_one_line_too(failing, capsys):
    failing(ZeroDivisionError("oops"))
    assert main(["pull", "x/y"]) == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in error
    assert "PAGODA_DEBUG=1" in error
    assert len(error.splitlines()) == 1


def test_debug_shows_where(failing, monkeypatch):
    monkeypatch.setenv("PAGODA_DEBUG", "1")
    failing(SourceError("no"))
    with pytest.raises(SourceError):
        main(["pull", "x/y"])


def test_ctrl_c_is_no_traceback(failing, capsys):
    failing(KeyboardInterrupt())
    assert main(["pull", "x/y"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("chained", [True, False])
def test_ctrl_c_in_native_code_is_no_bug(failing, capsys, chained):
    error = RuntimeError("not built" if chained else "not built: KeyboardInterrupt: ")
    error.__cause__ = ValueError("field")
    error.__cause__.__context__ = KeyboardInterrupt() if chained else None
    failing(error)
    assert main(["pull", "x/y"]) == 130
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_no_error():
    script = "import sys; from pagoda.cli.main import main; sys.exit(main(['--help']))"
    command = f'{sys.executable} -c "{script}" | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("closed", "encoding"), [(">&-", "utf-8"), ("", "ascii")])
def test_an_output_that_cannot_take_all_is_no_error(closed, encoding):
    script = "import sys; from pagoda.cli.main import main; sys.exit(main(['--help', '--lang=zh']))"
    command = f'{sys.executable} -c "{script}" {closed}'
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert closed or "OpenAI" in done.stdout


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["pull", "--help"]])
def test_help_imports_nothing_heavy(words):
    script = (
        "import sys\nfrom pagoda.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'httpx', 'rich', 'fastapi', 'pydantic', 'prompt_toolkit',"
        " 'huggingface_hub', 'asyncio'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "loaded: []"
