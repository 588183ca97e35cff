"""Requests made from the OpenAPI document: no 5xx, and every answer is as the document says."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from pagoda.server.routes.unserved import UNSERVED
from tests.server.conftest import running
from tests.server.fakes import FakeClient, FimTokenizer
from tests.server.test_pooling import encoder

CONFIG = {
    # What a field means is beyond JSON Schema, and fields nobody knows are no error.
    "checks": {
        "enabled": False,
        "status_code_conformance": {"enabled": True},
        "content_type_conformance": {"enabled": True},
        "response_schema_conformance": {"enabled": True},
    },
    "generation": {"deterministic": True},
    "phases": {"coverage": {"enabled": False}},
}
EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
POOLING = r"^/(v\d/)?(embed|pool|classify|score|rerank)"


def document(url: str) -> Any:
    config = schemathesis.Config.from_dict(CONFIG)
    return schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)


@pytest.fixture(scope="module")
def writer() -> Iterator[Any]:
    client = FakeClient(abilities={"vocab_size": FimTokenizer.vocab_size})
    with running(client, tokenizer=FimTokenizer()) as server:
        yield document(server.url)


@pytest.fixture(scope="module")
def embedder() -> Iterator[Any]:
    with running(encoder()) as server:
        yield document(server.url)


def check(case: schemathesis.Case) -> None:
    response = case.call_and_validate()
    unserved = f"{case.method} {case.path}" in UNSERVED
    assert (response.status_code == 501) is unserved or response.status_code < 500, response.text
    kind = response.headers.get("content-type", [""])[0]
    if kind.startswith("text/event-stream"):
        check_events(case, response.text)


def check_events(case: schemathesis.Case, text: str) -> None:
    """schemathesis reads no JSON within events."""
    raw = case.operation.schema.raw_schema
    content = raw["paths"][case.path][case.method.lower()]["responses"]["200"]["content"]
    _, told = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    validator = jsonschema_rs.validator_for(
        {**told["contentSchema"], "components": raw["components"]}
    )
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    assert lines
    for line in lines:
        if line != "data: [DONE]":
            validator.validate(json.loads(line.removeprefix("data: ")))


@schemathesis.pytest.from_fixture("writer").parametrize()
@EXAMPLES
def test_a_model_that_writes(case: schemathesis.Case) -> None:
    check(case)


@schemathesis.pytest.from_fixture("embedder").include(path_regex=POOLING).parametrize()
@EXAMPLES
def test_a_model_that_embeds(case: schemathesis.Case) -> None:
    check(case)
