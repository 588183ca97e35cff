"""`pagoda doctor`: what this machine can do, and how a model will run here or elsewhere."""

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.base.errors import ConfigError
from pagoda.base.printable import for_terminal
from pagoda.base.words import say, tell, told
from pagoda.config.compat import add_compat_flags
from pagoda.config.flags import (
    add_engine_flags,
    add_flags,
    engine_config,
    from_namespace,
    with_config_file,
)
from pagoda.config.server import ServerConfig

if TYPE_CHECKING:
    from pagoda.doctor.answer import Answer
    from pagoda.doctor.machine.measure import Measuring

USAGE = "[MODEL] [--gpu NAME] [--for USERS] [--why] [--compare MODEL ...] [flags of serve]"
USUAL = (
    "--gpu",
    "--for",
    "--why",
    "--compare",
    "--engine",
    "--json",
    "--plot",
    "--max-model-len",
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
)
EPILOG = (
    "Without a model: this machine. With one: whether it runs, what takes how much memory, how "
    "many tokens and users fit, how fast it will be, and with which flags. Weights are never "
    "loaded; of a hub model only headers are fetched."
)

prepare = with_config_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("doctor")
    group.add_argument("--gpu", metavar="NAME", help="plan for GPUs, such as A100-80G or 3090x4")
    group.add_argument(
        "--for", dest="users", metavar="USERS",
        help="plan for so many users at once, such as '20 users x 8k'",
    )  # fmt: skip
    group.add_argument("--why", action="store_true", help="the reason for every value")
    group.add_argument(
        "--compare", nargs="+", metavar="MODEL", help="several models or files side by side"
    )
    group.add_argument(
        "--engine", metavar="NAME",
        help="what another engine would take: vllm-0.19 (or another version), llama.cpp",
    )  # fmt: skip
    group.add_argument("--json", action="store_true", help="everything as JSON")
    group.add_argument("--plot", type=Path, metavar="FILE", help="where memory goes: .svg or .png")
    add_engine_flags(parser)
    add_flags(parser, ServerConfig)
    add_compat_flags(parser)


def run(args: argparse.Namespace) -> int:
    models = list(args.compare or ())
    named = args.model_tag or getattr(args, "model", None)
    if models and named:
        models.insert(0, named)
    if models and args.engine:
        raise ConfigError(say("--engine plans one model; name it without --compare."))
    if models:
        return _compare(args, models)
    if named:
        return _model(args) if args.engine is None else _other_engine(args)
    for name in ("gpu", "users", "plot", "engine", "why"):
        if getattr(args, name):
            flag = "--for" if name == "users" else f"--{name}"
            raise ConfigError(
                say("{flag} is about a model; name one: pagoda doctor MODEL {flag} ...", flag=flag)
            )
    return _machine(args)


def _machine(args: argparse.Namespace) -> int:
    from pagoda.doctor.findings import failed
    from pagoda.doctor.machine.checks import findings
    from pagoda.doctor.machine.probe import probe

    machine = probe()
    found = findings(machine)
    if args.json:
        import json
        from dataclasses import asdict

        rows = [asdict(finding) for finding in found]
        print(json.dumps({"machine": asdict(machine), "findings": rows}, indent=2))
    else:
        from pagoda.doctor.report import finding_lines, verdict

        print("\n".join(finding_lines(found, _width(), sys.stdout.isatty())))
        print(verdict(found))
    return int(failed(found))


def _model(args: argparse.Namespace) -> int:
    measuring = _measuring(args)
    from pagoda.doctor import ask, model_report
    from pagoda.doctor.command import serving_words
    from pagoda.doctor.remedies.search import remedies

    config = engine_config(args)
    question = ask.Question.of(config, args)
    _announce([config.model.model], config.model.download_dir)
    (answer,) = ask.answers(question, [question.config.model.model], measuring)
    answer = replace(answer, serving=serving_words(from_namespace(ServerConfig, args)))
    found = remedies(answer)
    if args.plot:
        _plot([answer], args.plot)
    if args.json:
        import json

        print(json.dumps(model_report.as_json(answer, found), indent=2))
    else:
        lines = model_report.lines(answer, found, args.why, _width())
        print(for_terminal("\n".join(lines)))
    return 0 if answer.fits else 1


def _other_engine(args: argparse.Namespace) -> int:
    """All that is said, the exit status too, is of that engine."""
    from pagoda.doctor import ask, model_report
    from pagoda.doctor.command import serving_words
    from pagoda.doctor.others import answer as other
    from pagoda.doctor.others import engines
    from pagoda.doctor.others.vllm import SERVER_FLAGS

    engines.check_engine(args.engine)
    if args.plot:
        raise ConfigError("--plot draws Pagoda's own memory; leave out it or --engine.")
    config = engine_config(args, plan_only=True)
    question = ask.Question.of(config, args)
    _announce([config.model.model], config.model.download_dir)
    (answer,) = ask.answers(question, [question.config.model.model], None)
    server = from_namespace(ServerConfig, args)
    answer = replace(answer, serving=serving_words(server, only=SERVER_FLAGS))
    found = engines.other_engine(args.engine, answer)
    if args.json:
        import json

        print(json.dumps(other.engine_json(found, answer), indent=2))
    else:
        lines = other.engine_lines(found, answer, args.why)
        print(for_terminal("\n".join(model_report.wrapped(lines, _width()))))
    return 0 if found.fits else 1


def _compare(args: argparse.Namespace, models: list[str]) -> int:
    measuring = _measuring(args)
    from pagoda.doctor import ask, model_report
    from pagoda.doctor.compare import comparison

    question = ask.Question.of(engine_config(args), args)
    _announce(models, question.config.model.download_dir)
    failures: dict[str, str] = {}
    answers = ask.answers(question, models, measuring, failures)
    if args.plot:
        _plot(answers, args.plot)
    if args.json:
        import json

        said = [model_report.as_json(answer, []) for answer in answers]
        said += [{"model": name, "fits": False, "problem": why} for name, why in failures.items()]
        print(json.dumps(said, indent=2))
    else:
        device = answers[0].hardware.name
        lines = [tell("on {device}; decode and prompt in tokens/s (estimates)", device=device)]
        lines += comparison(answers)
        if args.why:
            lines += model_report.wrapped(model_report.why_lines(answers), _width())
        failed = [say("{name}: {why}", name=name, why=failures[name]) for name in failures]
        lines += model_report.wrapped(failed, _width())
        print(for_terminal("\n".join(lines)))
    return 0 if not failures and all(answer.fits for answer in answers) else 1


def _measuring(args: argparse.Namespace) -> "Measuring | None":
    """Begun before anything else is imported: it measures in the meantime."""
    if args.gpu is not None:
        return None
    from pagoda.doctor.machine.measure import Measuring

    return Measuring()


def _announce(models: list[str], download_dir: str | None) -> None:
    from pagoda.weights.hub.remote import whole_fetch

    for model in models:
        if said := whole_fetch(model, download_dir):
            print(told(said), file=sys.stderr)


def _plot(answers: "list[Answer]", path: Path) -> None:
    from pagoda.doctor.plot import draw

    draw(answers, path)
    print(tell("The picture is in {path}.", path=path), file=sys.stderr)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns
