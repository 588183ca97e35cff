"""ERNIE 4.5 Thinking: as Hermes, with the text between `<response>` and `</response>`."""

from dataclasses import replace

from pagoda.text.parsers import hermes

MARKUP = replace(hermes.MARKUP, control=("<response>", "</response>"))
