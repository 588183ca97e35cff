"""What is sent without a question is run for real, in a sandbox, and must leave no trace.

Only lines that the policy lets pass are ever run. Lines are made of real programs that write,
delete, send and run, and of those that read, with hostile words, quotes and signs between them.
"""

import random
import shutil

import pytest

from pagoda_agent.consent.readonly import LISTED, only_reads
from tests.agent.rig.sandbox import observed

SETUP = [
    "mkdir dir && echo one > a.txt && echo two > dir/b.txt && ln -s a.txt link",
    # What patterns find looks like options that write.
    "touch -- -oPWNED --output=PWNED -delete '-exec touch PWNED ;' --files0-from=a.txt -ibak",
    "printf '#!/bin/sh\\ntouch /home/user/PWNED\\n' > run.sh && chmod +x run.sh && cp run.sh ls",
    "git init -q repo && cd repo && echo one > a.txt && git add a.txt",
    "cd repo && git -c user.name=x -c user.email=x@x.test commit -qm one",
    "cd repo && echo '* diff=x' > .gitattributes && echo two >> a.txt",
    *(
        f"cd repo && git config {name} /home/user/run.sh"
        for name in ("core.pager", "diff.external", "diff.x.textconv", "gpg.program")
    ),
    "cd repo && git config log.showSignature true",
]

WRITERS = [
    "rm {file}",
    "rm -rf {file}",
    "mv {file} x",
    "cp a.txt {file}",
    "tee {file}",
    "touch {file}",
    "truncate -s 0 {file}",
    "dd if=a.txt of={file}",
    "sed -i s/o/x/ {file}",
    "chmod 000 {file}",
    "ln -sf a.txt x",
    "mkdir x",
    'python3 -c \'open("x", "w")\'',
    "perl -e 'unlink \"a.txt\"'",
    "tar -cf x {file}",
    "tar --remove-files -cf x {file}",
    "bash run.sh",
    "./run.sh",
    "sh -c 'rm {file}'",
    "xargs rm",
    "env rm {file}",
    "sort -o {file} a.txt",
    "uniq a.txt {file}",
    "find {file} -delete",
    "find . -exec touch x ;",
    "find . -fprint x",
    "git init x",
    "git -C repo commit -am x",
    "echo x > {file}",
    "echo x >> {file}",
    "> {file}",
    "cat < a.txt > {file}",
    "getent hosts x.test",
    "hostname -f",
    "nc x.test 99",
    "ping -c 1 x.test",
    "curl x.test",
    "echo x > /dev/tcp/192.0.2.1/80",
    "cat < /dev/tcp/192.0.2.1/80",
    "split a.txt",
    "install a.txt x",
    "eval rm {file}",
    "exec rm {file}",
    "command rm {file}",
    "alias ls=rm",
    "PATH=. ls",
    "xxd a.txt x",
]
FILES = [
    "a.txt",
    "dir/b.txt",
    "*",
    "dir/*",
    "link",
    "-oPWNED",
    "../user/a.txt",
    "/home/user/a.txt",
    "repo",
    "./*",
    "nothing",
    "~/a.txt",
    "-",
]
HOSTILE = [
    "-o PWNED",
    "-oPWNED",
    "--output=PWNED",
    "--output PWNED",
    "-delete",
    "-exec touch PWNED ;",
    "-fprint PWNED",
    "-s 1",
    "-i",
    "-C",
    "--",
    "-T .",
    "--compress-program=./run.sh",
    "-w",
    "--files0-from=a.txt",
    "-ok rm {} ;",
    "-c",
    "--follow",
    "-O0",
    "--pre=./run.sh",
]
JOINTS = [
    " | ",
    "|",
    "; ",
    ";",
    " && ",
    "&&",
    " || ",
    " & ",
    "&",
    " |& ",
    "\n",
    " > ",
    " >> ",
    " < ",
    " 2>",
    ">| ",
    " $(",
    " `",
    " <(",
    " {a,",
    " 2>/dev/null ",
    " 2>&1 ",
    " >/dev/null; ",
    " \\",
    " # ",
    "=",
    " ! ",
]
SIGNS = list("'\"\\`$(){}[]<>|&;!#*?~^%=@,-/ \t\n") + ["''", '""', "$'", '$"', "\\\n", "${", "$(("]


def options(dice, name):
    """Of those on the list, sometimes with one that is not."""
    listed = LISTED[name]
    letters = (listed.flags + listed.valued).replace("f", "") if name == "tail" else listed.flags
    some = ["-" + "".join(dice.sample(letters, min(len(letters), dice.randint(1, 3))))]
    some += [f"-{letter}{dice.choice(['1', '2', ' 1'])}" for letter in listed.valued]
    return dice.choice([*some, *listed.long, "", "", "", dice.choice(HOSTILE)]) if letters else ""


def reader(dice):
    name = dice.choice(sorted(LISTED))
    words = [name, options(dice, name), dice.choice(["", "", dice.choice(FILES)])]
    if name == "git":
        words = [
            "cd repo && git --no-pager --no-optional-locks",
            dice.choice(["status", "log", "diff"]),
            dice.choice(["", "", "-s", "--stat", "--no-ext-diff", "--no-ext-diff --no-textconv"]),
            dice.choice(["", "--no-show-signature", "--output=PWNED", "-p", "a.txt"]),
        ]
    if name == "find":
        words += [
            dice.choice(["", "-name 'x*'", "-type f", '-newer "a.txt"', dice.choice(HOSTILE)])
        ]
    return " ".join(filter(None, words))


def mutated(dice, line):
    """With signs put in, words quoted, and letters hidden."""
    for _ in range(dice.choice([0, 0, 0, 1, 1, 2])):
        at = dice.randint(0, len(line))
        sign = dice.choice(SIGNS)
        match dice.randint(0, 3):
            case 0:
                line = line[:at] + sign + line[at:]
            case 1:
                words = line.split(" ")
                which = dice.randrange(len(words))
                quote = dice.choice("'\"")
                words[which] = quote + words[which] + quote
                line = " ".join(words)
            case 2:
                line = line[:at] + dice.choice(JOINTS) + line[at:]
            case 3:
                line = line[:at] + line[at + 1 :]
    return line


def made(dice):
    parts = [
        reader(dice)
        if dice.random() < 0.8
        else dice.choice(WRITERS).format(file=dice.choice(FILES))
        for _ in range(dice.choice([1, 1, 2, 3]))
    ]
    line = parts[0]
    for part in parts[1:]:
        line += dice.choice(JOINTS[:9] if dice.random() < 0.8 else JOINTS) + part
    return mutated(dice, line)


def every_option():
    """Each program of the list, with each of its options, on files, patterns and nothing."""
    for name, listed in LISTED.items():
        letters = listed.flags.replace("f", "").replace("F", "") if name == "tail" else listed.flags
        words = ["", *(f"-{letter}" for letter in letters), *listed.long]
        words += [f"-{letter}1" for letter in listed.valued]
        lines = [f"{name} {word} {file}".strip() for word in words for file in ("", "a.txt", "*")]
        if accepted := [line for line in lines if only_reads(line)]:
            yield accepted


def shells():
    return [name for name in ("bash", "dash", "zsh", "fish") if shutil.which(name)]


def assert_nothing_happened(groups, told):
    assert len(groups) == len(told)
    assert [(lines, news) for lines, news in zip(groups, told, strict=True) if news] == []


def test_the_sandbox_sees_what_lines_do():
    """Nobody is asked about these here: they run behind the same walls, and are seen."""
    groups = [
        ["ls -l", "cat a.txt"],
        ["rm a.txt"],
        ["echo x > new"],
        ["chmod 000 dir"],
        ["./run.sh"],
        ["getent hosts x.test"],
        ["echo > /dev/tcp/192.0.2.1/80"],
        ["touch /usr/x /etc/x"],
        ["cd repo && git diff"],
    ]
    told = observed("bash", groups, SETUP)
    assert [bool(news) for news in told] == [False, *[True] * 6, False, True]


def test_every_program_of_the_list_with_every_option():
    groups = list(every_option())
    assert len(groups) >= len(LISTED) - 3, "find, git and ip have words of their own"
    assert_nothing_happened(groups, observed("bash", groups, SETUP))


@pytest.mark.parametrize("shell", shells())
def test_no_generated_line_has_an_effect_unasked(shell):
    dice = random.Random(f"lines for {shell}")
    lines = list(dict.fromkeys(made(dice) for _ in range(6000)))
    accepted = [line for line in lines if only_reads(line)]
    assert 300 < len(accepted) < len(lines) / 2
    groups = [accepted[at : at + 20] for at in range(0, len(accepted), 20)]
    assert_nothing_happened(groups, observed(shell, groups, SETUP))


def test_no_writer_is_let_pass_however_it_is_quoted():
    """Whatever names a program that is not on the list is asked about."""
    dice = random.Random(7)
    for line in WRITERS:
        for _ in range(20):
            varied = mutated(dice, line.format(file=dice.choice(FILES)))
            head = varied.split()[0] if varied.split() else ""
            assert not only_reads(varied) or head in LISTED, varied
