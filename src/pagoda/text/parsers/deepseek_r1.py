"""DeepSeek R1 and its distilled models: they always think, and call as V3 does."""

from pagoda.text.parsers import deepseek_v3

MARKUP = deepseek_v3.MARKUP
