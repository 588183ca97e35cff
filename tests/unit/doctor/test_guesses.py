"""Which way to guess the doctor names, with what memory and speed."""

from dataclasses import replace
from math import inf

import pytest

from pagoda.cli.main import parse_command
from pagoda.config.engine import ParallelConfig
from pagoda.config.flags import engine_config
from pagoda.config.speculation import METHODS, SpeculationConfig
from pagoda.doctor.answer import answer, with_speed
from pagoda.doctor.guesses import with_guesses
from pagoda.doctor.guesses_report import WORDS
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.model_report import as_json, lines
from pagoda.doctor.remedies.search import remedies
from pagoda.doctor.subject import with_draft_model
from pagoda.planner.devices.guess_speed import best_gain, tokens_of_step
from pagoda.planner.devices.speed import DeviceSpeed, ProductSpeed
from pagoda.weights.formats import FORMATS
from tests.unit.doctor.models import GIB, LLAMA, QWEN3_5, QWEN3_MOE, asked, box, subject_of
from tests.unit.planner.test_eagle3 import MODEL, head_in

HEAD_MOE = QWEN3_MOE | {
    "architectures": ["Qwen3NextForCausalLM"], "mtp_num_hidden_layers": 1,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "shared_expert_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "partial_rotary_factor": 0.25, "rope_theta": 1e6,
}  # fmt: skip
CPU = DeviceSpeed(
    read=2e10, products=dict.fromkeys(FORMATS, ProductSpeed(inf, 5e11)), start=0.0, step=0.0,
    floats=inf,
)  # fmt: skip


def planned(folder, config, hardware, measured=None, speculation=None, **model):
    folder.mkdir(exist_ok=True)
    found = subject_of(folder, config)
    wanted = asked(found, max_model_len=4096, **model)
    wanted = replace(wanted, speculation=SpeculationConfig(speculation or {}))
    subject = with_draft_model(found, wanted)
    return with_guesses(with_speed(answer(subject, hardware, wanted), measured), measured)


def ways_of(made):
    return {way.flags or "in use": way for way in made.guesses.ways}


def test_how_many_pay():
    assert tokens_of_step(0) == 1 and tokens_of_step(2) == pytest.approx(1 + 0.8 + 0.64)
    free = best_gain(lambda rows: 1.0, 4)
    assert free.guesses == 4 and free.times == pytest.approx(tokens_of_step(4))
    dear = best_gain(float, 4)  # each guess costs as much as a step
    assert (dear.guesses, dear.times) == (0, 1.0)
    # 0.7 of a step for a guess and its making: the first gains 1.8 / 1.7, a second nothing.
    some = best_gain(lambda rows: 1 + 0.4 * (rows - 1), 4, drafting=0.3)
    assert some.guesses == 1 and some.times == pytest.approx(1.8 / 1.7)


def test_a_head_on_a_gpu(tmp_path):
    made = planned(tmp_path, QWEN3_5, elsewhere("A100-80G"))
    guesses, ways = made.guesses, ways_of(made)
    assert guesses.method == "none" and "in use" not in ways
    fast, stable = ways["--mode fast"], ways["--mode stable"]
    assert (fast.most, stable.most) == (4, 3) and guesses.best is fast
    # A layer and the two halves of `fc`, in bf16; the rest is keys, values and steps.
    hidden, wide, heads = 5120, 17408, 256 * (2 * 24 + 2 * 4 + 24)
    layer = 2 * hidden * (heads + 3 * wide + 2 * hidden)
    assert layer < fast.memory < layer + GIB
    plain = made.speeds.one.decode_range
    # Without what verifying and drafting take it is the tokens of a step.
    for way, guessed in ((fast, 4), (stable, 3)):
        for speed, before in zip(way.decode_range, plain, strict=True):
            assert 1.5 * before < speed < tokens_of_step(guessed) * before
    copied = ways["--spec-method suffix"]
    assert copied.copies and copied.decode_range > fast.decode_range
    text = "\n".join(lines(made, [], False, 300))
    assert ": off (default on cuda); use --mode fast" in text
    low, high = (f"{bound:,.0f}" for bound in fast.decode_range)
    assert f"up to 4 tokens at a time; {low} to {high} tokens/s on any text" in text
    assert "suffix guesses from what stood in the request or in recent replies" in text
    said = as_json(made, [])["guesses"]
    assert said["use"] == "--mode fast" and said["chance"] == 0.8
    assert [way["flags"] for way in said["ways"]] == list(ways)
    assert said["ways"][0]["memory"] == fast.memory and said["ways"][0]["problem"] is None


@pytest.mark.parametrize("flags", ["--mode fast", "--mode stable", "--spec-method suffix"])
def test_the_flags_do_what_is_said_of_them(tmp_path, flags):
    made = planned(tmp_path, QWEN3_5, elsewhere("A100-80G"))
    _, args = parse_command("serve", [made.subject.ref, "--max-model-len", "4096", *flags.split()])
    typed = answer(made.subject, made.hardware, engine_config(args))
    found, way = typed.resolution.config.speculation, ways_of(made)[flags]
    assert (found.method, found.most) == (way.method, way.most)
    before, after = (each.resolution.plan for each in (made, typed))
    grown = after.weights + after.beside_weights - before.weights - before.beside_weights
    assert 0 <= grown <= way.memory


def test_what_is_in_use_comes_first(tmp_path, monkeypatch):
    gpu = elsewhere("A100-80G")
    made = planned(tmp_path, QWEN3_5, gpu, speculation={"mode": "fast"})
    ways = ways_of(made)
    assert list(ways) == ["in use", "--mode stable", "--spec-method suffix"]
    assert made.guesses.method == "mtp" and made.guesses.best is ways["in use"]
    assert "; keep it" in "\n".join(lines(made, [], False, 300))
    assert as_json(made, [])["guesses"]["use"] == ""
    monkeypatch.setenv("PAGODA_SPEC_TOKENS", "2")
    made = planned(tmp_path, QWEN3_5, gpu, speculation={"mode": "fast"})
    assert ways_of(made)["in use"].most == 2


def test_on_a_cpu_copies_are_guessed_by_default(tmp_path):
    made = planned(tmp_path, LLAMA, box(), CPU)
    guesses = made.guesses
    (way,) = guesses.ways
    assert guesses.method == "suffix" and guesses.best is way and not way.flags
    one = made.speeds.one
    # A guess costs what a token of a prompt costs.
    times = max(
        tokens_of_step(k) / one.decode / (1 / one.decode + k / one.prefill) for k in range(9)
    )
    assert way.times == pytest.approx(times) and 1.5 < times < 4
    assert way.decode_range == pytest.approx([times * bound for bound in one.decode_range])
    text = "\n".join(lines(made, [], False, 300))
    assert "where a reply repeats it, no faster elsewhere" in text


def test_guesses_that_cost_more_than_they_gain(tmp_path):
    slow = replace(CPU, products=dict.fromkeys(FORMATS, ProductSpeed(inf, 1e10)))
    made = planned(tmp_path, LLAMA, box(), slow)
    assert made.guesses.best is None and made.guesses.ways[0].times == 1.0
    text = "\n".join(lines(made, [], False, 300))
    assert "none of them is faster here" in text and "none would be verified" in text
    assert as_json(made, [])["guesses"]["use"] is None


def test_a_way_to_guess_is_left_out_where_its_memory_is_what_lacks(tmp_path):
    subject = subject_of(tmp_path, QWEN3_5)
    wanted = asked(subject, max_model_len=32768)
    hardware = elsewhere("A100-80G")
    plan = answer(subject, hardware, wanted).resolution.plan
    need = plan.weights + plan.beside_weights + plan.slabs_for(32768) * plan.slab_bytes
    facts = replace(hardware.facts, total_memory=round((need + GIB) / 0.9), free_memory=need + GIB)
    fast = replace(wanted, speculation=SpeculationConfig({"mode": "fast"}))
    made = answer(subject, replace(hardware, facts=facts), fast)
    found = {remedy.words: remedy.command for remedy in remedies(made)}
    assert not made.fits and "speculative" not in found["--speculative-config left out"]


def test_every_method_has_words():
    assert set(WORDS) == set(METHODS) - {"auto", "none"}


def test_of_a_device_without_speeds_only_memory_is_said(tmp_path):
    hardware = replace(elsewhere("A100-80G"), gpu=None)
    made = planned(tmp_path, QWEN3_5, hardware)
    way = ways_of(made)["--mode fast"]
    assert way.memory > 0 and way.decode_range is None and made.guesses.best is None
    text = "\n".join(lines(made, [], False, 300))
    assert "what they gain here is not known" in text and "tokens/s on any" not in text


def test_guesses_of_a_mixture_meet_more_experts(tmp_path):
    gpu, times = elsewhere("H100"), []
    for config in (QWEN3_MOE, LLAMA):
        times.append(ways_of(planned(tmp_path, config, gpu))["--spec-method suffix"].times)
    assert 1 < times[0] < times[1]
    heads = ways_of(planned(tmp_path, HEAD_MOE, elsewhere("H200")))["--mode fast"]
    experts = 2 * 128 * 3 * 2048 * 768
    assert experts < heads.memory < 2 * experts and heads.times > 1


def test_a_head_that_cannot_be_had_is_no_advice(tmp_path):
    two = replace(asked(subject_of(tmp_path, QWEN3_5)), parallel=ParallelConfig(2))
    subject = subject_of(tmp_path, QWEN3_5)
    made = with_guesses(with_speed(answer(subject, elsewhere("A100-80Gx2"), two)))
    problem = ways_of(made)["--mode fast"].problem
    assert problem == "a head drafts on one device only"
    assert made.guesses.best.flags == "--spec-method suffix"
    assert f"not here: {problem}" in "\n".join(lines(made, [], False, 300))

    whole = answer(subject, elsewhere("A100-80G"), asked(subject, max_model_len=4096))
    plan = whole.resolution.plan
    tight = plan.weights + plan.beside_weights + plan.slabs_for(4096) * plan.slab_bytes + GIB // 2
    hardware = elsewhere("A100-80G")
    facts = replace(hardware.facts, free_memory=tight, total_memory=round(tight / 0.9))
    made = planned(tmp_path, QWEN3_5, replace(hardware, facts=facts))
    assert made.fits and ways_of(made)["--mode fast"].problem == "it does not fit beside the rest"


TINY = LLAMA | {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


@pytest.mark.parametrize(("hardware", "measured"), [(elsewhere("3090"), None), (box(), CPU)])
def test_a_model_that_is_named_is_planned(tmp_path, hardware, measured):
    (tmp_path / "draft").mkdir()
    ref = subject_of(tmp_path / "draft", TINY).ref
    wanted = {"method": "draft", "model": ref, "num_speculative_tokens": 5}
    made = planned(tmp_path / "target", LLAMA, hardware, measured, speculation=wanted)
    way = ways_of(made)["in use"]
    weights = 2 * (2 * 32000 * 256 + 2 * (256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 704))
    cached = 4096 * 2 * 2 * 2 * 64 * 2
    plan = made.resolution.plan
    assert plan.draft_model == pytest.approx(weights, rel=1e-2)
    # Its steps take memory besides, most of it for logits.
    logits = 3 * 4 * 32000 * made.resolution.config.scheduler.max_num_seqs
    assert weights + cached <= way.memory < weights + cached + 2 * logits + 100e6
    assert (way.method, way.most) == ("draft", 5) and made.guesses.best is way
    assert 1.2 < way.times < tokens_of_step(5)
    text = "\n".join(lines(made, [], False, 300))
    assert "draft is on" in text and "the draft model, up to 5 tokens at a time; " in text
    assert "--spec-method suffix" in ways_of(made)


def test_a_head_of_another_checkpoint(tmp_path):
    head_in(tmp_path / "head")
    wanted = {"method": "eagle3", "model": str(tmp_path / "head"), "num_speculative_tokens": 3}
    (tmp_path / "model").mkdir()
    subject = subject_of(tmp_path / "model", MODEL)
    config = replace(asked(subject), speculation=SpeculationConfig(wanted))
    made = answer(subject, box(), config)
    plain = answer(subject, box(), asked(subject)).resolution.plan
    with_head = with_guesses(with_speed(made, CPU), CPU)
    way = ways_of(with_head)["in use"]
    added = made.resolution.plan.weights - plain.weights
    assert (way.method, way.most) == ("eagle3", 3) and 0 < added <= way.memory < added + 100e6
    assert way.gains and list(ways_of(with_head)) == ["in use", "--spec-method suffix"]
    assert "eagle3 is on" in "\n".join(lines(with_head, [], False, 300))
