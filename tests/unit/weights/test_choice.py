"""Which files of a repository are fetched."""

import pytest

from pagoda.base.errors import SourceError
from pagoda.weights.choice import RemoteFile, choose_files, quant_of


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1000 + i) for i, name in enumerate(names)]


def paths(names: list[str], selector: str | None = None) -> list[str]:
    choice = choose_files("org/name", files(*names), selector)
    assert choice.entry in ("", choice.files[0].path)
    return [file.path for file in choice.files]


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("llama-2-7b.Q4_K_M.gguf", "Q4_K_M"),
        ("model-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-UD-Q3_K_XL.gguf", "UD-Q3_K_XL"),
        ("qwen2-0_5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("BF16/m-BF16-00001-of-00002.gguf", "BF16"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Q4_0-fan-F16.gguf", "F16"),
        ("model.gguf", ""),
    ],
)
def test_quantizations_in_names(path: str, quant: str) -> None:
    assert quant_of(path) == quant


def test_default_gguf() -> None:
    names = ["m-F16.gguf", "m-Q2_K.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf"]
    assert paths(names) == ["m-Q4_K_M.gguf"]
    assert paths(names[:3]) == ["m-Q8_0.gguf"]
    assert paths(names[:2]) == ["m-F16.gguf"], "the smallest"


@pytest.mark.parametrize(
    ("names", "taken", "advice"),
    [
        (["a-Q4_1.gguf", "b-Q8_0.gguf"], "b-Q8_0.gguf", "Q8_0 of 2; write org/name:Q4_1 for"),
        # A quantization that two have, and none, name nothing.
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "a-Q8_0.gguf", "Q8_0 of 2; write org/name:b-Q8_0.gguf"),
        (["a.gguf", "b.gguf"], "a.gguf", "smallest of 2; write org/name:b.gguf for another"),
        (
            ["m-F16.gguf", "m-Q2_K.gguf", "x/m-Q8_0.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf",
            "Q4_K_M of 4; write org/name:F16 (or Q2_K, Q8_0) for another",
        ),
        (
            [f"m-Q{bits}_0.gguf" for bits in range(1, 9)], "m-Q8_0.gguf",
            "Q8_0 of 8; write org/name:Q1_0 (or Q2_0, Q3_0, Q4_0, Q5_0, ...) for another",
        ),
    ],
)  # fmt: skip
def test_the_one_that_is_taken_is_named_and_how_to_take_another(names, taken, advice) -> None:
    choice = choose_files("org/name", files(*names), None)
    assert choice.entry == taken and taken in choice.reason and advice in choice.reason
    selector = advice.partition("org/name:")[2].split()[0]
    assert choose_files("org/name", files(*names), selector).entry != taken


def test_selected_gguf() -> None:
    names = ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "sub/n-Q4_K_M.gguf", "m-Q8_0.gguf"]
    assert paths(names, "ud-q4_k_m") == ["m-UD-Q4_K_M.gguf"]
    assert paths(names, "n-Q4_K_M.gguf") == ["sub/n-Q4_K_M.gguf"]
    with pytest.raises(SourceError, match="several Q4_K_M.*Name the file"):
        paths(names, "Q4_K_M")
    with pytest.raises(SourceError, match="no 'Q5_0'; it has Q4_K_M, Q8_0, UD-Q4_K_M"):
        paths([names[0], names[1], names[3]], "Q5_0")
    with pytest.raises(SourceError, match="no GGUF at all"):
        paths(["model.safetensors", "config.json"], "Q4_0")


def test_parts_of_a_split_gguf_come_together() -> None:
    parts = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert paths([*reversed(parts), "m-Q4_0.gguf"], "Q8_0") == parts
    assert paths([*parts, "m-Q4_0.gguf"], "m-Q8_0-00002-of-00003.gguf") == parts


def test_safetensors_win_and_pickles_never_come() -> None:
    names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "consolidated.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "tokenizer.model",
        "merges.txt",
        "chat_template.jinja",
        "pytorch_model.bin",
        "training_args.pt",
        ".gitattributes",
        "README.md",
        "onnx/config.json",
        "m-Q4_K_M.gguf",
    ]
    assert paths(names) == [*names[:2], *names[3:8]]
    assert paths(names, "Q4_K_M") == ["m-Q4_K_M.gguf"]


@pytest.mark.parametrize("path", ["../x.gguf", "/x.gguf", "a/../../x.gguf", "..\\x.gguf"])
def test_paths_that_leave_the_folder_are_ignored(path: str) -> None:
    with pytest.raises(SourceError, match="neither safetensors nor GGUF"):
        paths([path])


def test_sentence_transformers_modules_come_along() -> None:
    names = ["model.safetensors", "modules.json", "1_Pooling/config.json", "onnx/config.json",
             "2_Dense/model.safetensors", "2_CNN/model.safetensors",
             "1_Pooling/sub/config.json"]  # fmt: skip
    assert sorted(paths(names)) == [
        "1_Pooling/config.json", "2_Dense/model.safetensors", "model.safetensors", "modules.json",
    ]  # fmt: skip


def test_a_gguf_comes_with_its_vision_tower() -> None:
    towers = [
        "mmproj-m-F32.gguf",
        "mmproj-m-Q8_0.gguf",
        "mmproj-m-BF16.gguf",
        "sub/mmproj-F16.gguf",
    ]
    names = ["m-Q2_K.gguf", "m-Q4_K_M.gguf"]
    assert paths([*names, *towers]) == ["m-Q4_K_M.gguf", "mmproj-m-BF16.gguf"]
    assert paths([*names, *towers], "Q2_K") == ["m-Q2_K.gguf", "mmproj-m-BF16.gguf"]
    assert paths([*names, towers[0]]) == ["m-Q4_K_M.gguf", "mmproj-m-F32.gguf"]
    assert (
        "images by mmproj-m-F32.gguf" in choose_files("o/n", files(*names, towers[0]), None).reason
    )
