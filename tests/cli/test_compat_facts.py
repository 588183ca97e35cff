"""What is said of others' flags is so: each fact is held against the code that it speaks of."""

import dataclasses
import importlib
import importlib.util
import pkgutil
import re
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from pagoda.base import env
from pagoda.config import flags
from pagoda.config.compat_same import SAME
from pagoda.config.compat_table import TABLE
from pagoda.config.compat_values import FOREIGN_VALUES
from pagoda.config.engine import CacheConfig, ModelConfig
from pagoda.config.parallel import ParallelConfig
from pagoda.config.parser import FlagParser
from pagoda.config.server import ServerConfig
from pagoda.server import routes as served
from pagoda.server.protocol.common import Body
from pagoda.server.routes.unserved import UNSERVED
from pagoda.text.parsers.select import FAMILIES

REASONS = [entry.why for entry in TABLE]
REASONS += [why for values in FOREIGN_VALUES.values() for _, why in values.values()]
FACTS = {why.text: why for why in REASONS}
QUOTED = re.compile("`[^`]*`")
DENIES = re.compile(r"\b(no|not|never|nothing|nobody|none|cannot|only)\b")


@dataclass
class Known:
    flags: set[str]
    routes: set[str]
    fields: set[str]

    def has(self, name: str) -> bool:
        if name.startswith("-"):
            return name in self.flags
        if name.startswith("/"):
            return name in {route.split()[1] for route in self.routes}
        if name.startswith("pagoda."):
            return importlib.util.find_spec(name) is not None
        return name in (env.VARIABLES if name.isupper() else self.fields)

    def mentions(self, part: str) -> list[str]:
        """The flags, routes and fields whose names have it."""
        names = [*self.flags, *self.fields, *self.routes]
        wanted = part.replace("_", "-")
        return [name for name in names if wanted in name.replace("_", "-")]


def bodies(kind: type[BaseModel] = Body) -> list[type[BaseModel]]:
    return [kind, *(found for sub in kind.__subclasses__() for found in bodies(sub))]


@pytest.fixture(scope="module")
def known() -> Known:
    parser = FlagParser(prog="pagoda serve")
    flags.add_engine_flags(parser)
    flags.add_flags(parser, ServerConfig)
    found = pkgutil.walk_packages(served.__path__, f"{served.__name__}.")
    routers = [importlib.import_module(info.name).router for info in found if not info.ispkg]
    routes = {
        f"{method} {route.path}"
        for router in routers
        for route in router.routes
        for method in getattr(route, "methods", ())  # a WebSocket's has none
    }
    fields = {name for body in bodies() for name in body.model_fields}
    return Known(set(parser._option_string_actions), routes - set(UNSERVED), fields)


def test_what_is_said_to_be_there_is(known: Known):
    missing = {fact.text: [x for x in fact.has if not known.has(x)] for fact in FACTS.values()}
    assert {text: names for text, names in missing.items() if names} == {}


def test_what_is_said_to_be_missing_is(known: Known):
    """Whoever builds one of these finds here which flags deny it."""
    found = {
        (fact.text, part): known.mentions(part) for fact in FACTS.values() for part in fact.lacks
    }
    assert {denied: names for denied, names in found.items() if names} == {}


def test_a_fact_names_what_shows_it():
    for fact in FACTS.values():
        assert fact.has or fact.lacks, fact
        assert fact.lacks or not DENIES.search(QUOTED.sub("", fact.text)), fact


def test_what_a_reason_advises_is_there(known: Known):
    others = {flag for entry in (*TABLE, *SAME) for flag in entry.flags.split()}
    for fact in FACTS.values():
        advised = re.findall(r"(?<![\w-])--[a-z][\w-]+|(?<![\w.])/[a-z]\w*(?:[/.]\w+)*", fact.text)
        assert [name for name in advised if not known.has(name) and name not in others] == []


def test_no_flag_of_ours_is_answered_as_another_s(known: Known):
    for entry in TABLE:
        assert known.flags.isdisjoint(entry.flags.split()), entry


def test_values_that_only_others_have_are_none_of_ours():
    for name, foreign in FOREIGN_VALUES.items():
        section = ServerConfig if name == "log_level" else ModelConfig
        section = CacheConfig if name == "kv_cache_dtype" else section
        section = ParallelConfig if name == "distributed_executor_backend" else section
        (field,) = [field for field in dataclasses.fields(section) if field.name == name]
        ours = field.metadata["choices"] or FAMILIES
        assert set(ours).isdisjoint(foreign), name
        assert {instead for instead, _ in foreign.values()} - {None} <= {*ours, "auto"}


def test_what_others_say_is_said_to_fields_of_ours():
    ours = {field.name for cls in flags.SECTIONS.values() for field in dataclasses.fields(cls)}
    ours |= {field.name for field in dataclasses.fields(ServerConfig)}
    assert {same.field for same in SAME} <= ours
    assert {name for entry in TABLE for value in entry.means.values() for name in value} <= ours


def test_a_feature_that_is_there_cannot_be_denied(known: Known):
    for part in ("tokenizer_info", "structured", "grammar", "--webui", "kv-disk", "POST /sleep"):
        assert known.mentions(part)
