import sys

import pytest

from pagoda.base.registry import Registry


def test_objects_load_when_asked_for():
    sys.modules.pop("colorsys", None)
    registry = Registry("thing", {"hls": "colorsys:hls_to_rgb", "broken": "no_such_module:x"})
    assert "colorsys" not in sys.modules
    assert registry.get("hls").__name__ == "hls_to_rgb"
    assert sorted(registry) == ["broken", "hls"]


def test_an_unknown_name_gets_the_nearest():
    registry = Registry("architecture", {"LlamaForCausalLM": "a:b", "BertModel": "a:c"})
    with pytest.raises(KeyError, match="nearest known is 'LlamaForCausalLM'"):
        registry.get("LamaForCausalLM")
