"""Help of commands with many flags."""

import pytest

from pagoda.cli.main import COMMANDS, main
from tests.cli.messages import parsers

LONG = ("serve", "chat", "complete", "run-batch", "doctor", "simulate")


def shown(capsys, *words):
    with pytest.raises(SystemExit) as exit_info:
        main(list(words))
    assert exit_info.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_two_screens(name, capsys):
    if name != "agent":  # a program of its own
        assert len(shown(capsys, name, "--help").splitlines()) <= 70


@pytest.mark.parametrize("name", LONG)
def test_the_usual_flags_come_first_and_all_when_asked(name, capsys):
    usual, every = shown(capsys, name, "--help"), shown(capsys, name, "--help=all")
    assert f"`pagoda {name} --help=all` shows all" in usual
    assert "usual flags:" in usual and "--enable-prefix-caching" not in usual
    assert "--[no-]enable-prefix-caching" in every and len(every) > 3 * len(usual)


def test_the_count_is_that_of_what_all_shows(capsys):
    usual, every = shown(capsys, "serve", "-h"), shown(capsys, "serve", "--help", "all")
    count = sum(line.startswith("  -") for line in every.splitlines())
    assert f"shows all {count} flags" in usual


@pytest.mark.parametrize("word", ["max-model-len", "--max-model-len", "max_model_len", "Model-Len"])
def test_a_word_shows_the_flags_with_it(word, capsys):
    out = shown(capsys, "serve", f"--help={word}")
    assert "--max-model-len" in out and "--port" not in out


def test_the_name_of_a_group_shows_the_group(capsys):
    out = shown(capsys, "serve", "--help=adapter")
    assert "--max-loras" in out and "--port" not in out


def test_a_word_that_nothing_has_is_answered_with_the_usual_help(capsys):
    out = shown(capsys, "serve", "--help=xyzzy")
    assert "No flag has to do with 'xyzzy'." in out and "usual flags:" in out
    assert "model, cache, scheduler" in " ".join(out.split())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("memmory", "memory"), ("--max-modle-len", "max-model-len"), ("paralel", "parallel")],
)
def test_a_mistyped_word_is_answered_with_the_one_that_was_meant(typed, meant, capsys):
    out = " ".join(shown(capsys, "serve", f"--help={typed}").split())
    assert f"`pagoda serve --help={meant}` shows those with '{meant}'" in out
    assert f"-{meant}" in shown(capsys, "serve", f"--help={meant}")


@pytest.mark.parametrize("word", ["AdapterConfig", "adapter"])
def test_a_group_may_be_named_as_vllm_names_it(word, capsys):
    assert "--max-loras" in shown(capsys, "serve", f"--help={word}")


def test_a_word_that_no_name_has_is_looked_for_in_the_texts(capsys):
    out = shown(capsys, "serve", "--help=Affinity")
    assert "--threads" in out and "--port" not in out


@pytest.mark.parametrize("words", [["ps", "--help=all"], ["bench", "serve", "--help", "all"]])
def test_a_small_command_shows_all_it_has(words, capsys):
    bare = [*words[:-1], "--help"] if words[-1] == "--help=all" else words[:-1]
    assert shown(capsys, *words) == shown(capsys, *bare)


def test_the_command_itself_takes_words_too(capsys):
    assert main(["--help=all"]) == 0
    assert "commands:" in capsys.readouterr().out
    assert shown(capsys, "--help=pull") == shown(capsys, "pull", "--help")
    assert shown(capsys, "--help", "kv-cache") == shown(capsys, "serve", "--help=kv-cache")


@pytest.mark.parametrize("name", parsers())
def test_every_flag_says_what_it_does(name):
    silent = [action.option_strings or action.dest
              for action in parsers()[name]._actions if not action.help]  # fmt: skip
    assert not silent
