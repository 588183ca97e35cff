"""What is printed of an answer: it can be pasted, and it is true where the model will run."""

import shlex
from dataclasses import replace

import pytest

from pagoda.cli.main import parse_command
from pagoda.config.flags import engine_config
from pagoda.doctor.answer import answer
from pagoda.doctor.command import fields_of
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.model_report import as_json, lines
from pagoda.doctor.need import needed
from pagoda.doctor.plot import draw
from pagoda.doctor.remedies.search import remedies
from pagoda.doctor.subject import find_subject, with_draft_model
from pagoda.doctor.users import Users
from pagoda.planner.memory.tensors import parameter_count
from tests.unit.doctor.models import LLAMA, QWEN3_5, asked, box, subject_of

GIVEN = (
    "--kv-cache-memory-bytes 4G --served-model-name 'a b' c --enforce-eager "
    """--no-enable-chunked-prefill --limit-mm-per-prompt '{"image": 1}' --kv-cache-dtype fp8"""
)
AWQ = {"quantization_config": {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
}}  # fmt: skip


def planned(tmp_path, config, hardware, words=""):
    subject = subject_of(tmp_path, config)
    _, args = parse_command("serve", [subject.ref, *shlex.split(words)])
    return answer(subject, hardware, engine_config(args))


def test_the_flags_are_read_as_they_are_printed(tmp_path):
    for hardware in (elsewhere("A100-80G"), box(64)):
        made = planned(tmp_path, LLAMA, hardware, GIVEN)
        text = lines(made, [], False, 100_000)
        flags = next(line for line in text if line.startswith("flags,")).partition("reasons): ")[2]
        _, args = parse_command("serve", [made.subject.ref, *shlex.split(flags)])
        read, chosen = fields_of(engine_config(args)), {f.name: f.value for f in made.flags()}
        meant = {**fields_of(made.config), **chosen}
        left = {"device", "threads"} if not hardware.here else {"device"}
        assert {name for name in read if read[name] != meant[name]} <= left


def test_how_a_checkpoint_is_stored_is_no_flag(tmp_path):
    made = planned(tmp_path, LLAMA | AWQ, elsewhere("3090"))
    assert "--quantization" not in "\n".join(lines(made, [], False, 100))
    assert "weights are AWQ, 4 bits" in "\n".join(lines(made, [], True, 100))
    assert all(row["flag"] != "--quantization" for row in as_json(made, [])["flags"])


def test_which_prompts_are_captured_is_said(tmp_path):
    words = "prompts are captured up to 2,048 tokens of a step; all that a step may have"
    made = planned(tmp_path, LLAMA, elsewhere("H100"))
    assert words in "\n".join(lines(made, [], True, 100))
    on_cpu = planned(tmp_path, LLAMA, box())
    assert "captured" not in "\n".join(lines(on_cpu, [], True, 100))


def test_reasons_are_true(tmp_path):
    made = planned(tmp_path, QWEN3_5, elsewhere("A100-80G"), "--kv-cache-dtype fp8")
    rows = {row["flag"]: row for row in as_json(made, [])["flags"]}
    assert rows["--kv-cache-dtype"]["value"] == "fp8_e4m3"
    assert "int8 takes 4 bytes more" in rows["--kv-cache-dtype"]["why"]
    assert "--threads" not in rows  # of a machine that is not here
    memory = {row["item"]: row for row in as_json(made, [])["memory"]}
    assert memory["weights"]["detail"] == "from config.json alone"
    assert "at most" not in memory["captured steps"]["detail"]
    asked_for = planned(tmp_path, LLAMA, elsewhere("3090"), "--threads 3")
    assert "--threads 3: as you ask" in "\n".join(lines(asked_for, [], True, 100))
    here = answer(made.subject, box(96), asked(made.subject))
    assert "--threads 8: affinity" in "\n".join(lines(here, [], True, 100))


def test_users_of_a_model_that_does_not_fit_alone_get_no_numbers(tmp_path):
    subject = subject_of(tmp_path, QWEN3_5)
    made = answer(subject, box(8), asked(subject), users=Users(20, 8000))
    text = "\n".join(lines(made, [], False, 100))
    assert "does not fit here" in text and "up to 0 users" not in text


def test_a_context_that_holds_nobody_is_answered_with_one_that_fits(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(64), asked(subject), users=Users(2, 9_000_000))
    text = "\n".join(lines(made, [], False, 300))
    assert "not one of that length fits" in text and "up to 0 users" not in text
    assert [each.words for each in remedies(made) if each.words.startswith("2 users of up to")]


def test_a_draft_model_is_counted(tmp_path):
    """In memory, in the picture of it, and in the command, on one of several GPUs."""
    (tmp_path / "small").mkdir()
    small = subject_of(tmp_path / "small", {**LLAMA, "num_hidden_layers": 2})
    for hardware in (box(64), elsewhere("3090x2")):
        _, args = parse_command("serve", [subject_of(tmp_path, LLAMA).ref, "-md", small.ref])
        config = engine_config(args)
        subject = with_draft_model(find_subject(config.model), config)
        made = answer(subject, hardware, config)
        rows = {row["item"]: row for row in as_json(made, [])["memory"]}
        assert rows["draft model"]["exactness"] == "exact"
        assert rows["draft model"]["bytes"] == pytest.approx(2 * parameter_count(small.spec), 1e-3)
        assert any(line.split()[:2] == ["draft", "model"] for line in lines(made, [], False, 100))
        assert f'"model": "{small.ref}"' in made.command
        assert made.config.parallel.tensor_parallel_size == 1
        draw([made], tmp_path / "memory.svg")
        assert "draft model" in (tmp_path / "memory.svg").read_text()
        needs = needed(replace(made, resolution=None))
        assert needs.draft_model == made.resolution.plan.draft_model
