"""Hunyuan, dense and A13B: `<think>...</think>`, then text between `<answer>` and `</answer>`, with
calls as a list of JSON in `<tool_calls>`."""

from dataclasses import replace

from pagoda.text.parsers import generic

MARKUP = replace(generic.MARKUP, control=("<answer>", "</answer>"))
