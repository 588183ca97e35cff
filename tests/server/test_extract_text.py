"""POST /extract-text."""

from pagoda.config.server import ServerConfig
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.unit.text.pdfs import pdf

PDF = {"Content-Type": "application/pdf"}


def test_text_of_a_pdf(shared: RunningServer) -> None:
    reply = shared.http.post("/extract-text", content=pdf("Hello", "world"), headers=PDF)
    assert reply.json() == {"text": "Hello\n\nworld", "pages": 2, "pages_read": 2}


def test_what_is_refused_says_why(shared: RunningServer) -> None:
    reply = shared.http.post("/extract-text", content=b"text", headers=PDF)
    assert reply.status_code == 400
    assert "is no PDF" in reply.json()["error"]["message"]
    # A form, which any page may send.
    for kind in ("text/plain", "multipart/form-data", "application/json"):
        headers = {"Content-Type": kind}
        reply = shared.http.post("/extract-text", content=pdf("Hello"), headers=headers)
        assert reply.status_code == 400
        assert "send a PDF" in reply.json()["error"]["message"]


def test_it_needs_the_key_and_has_the_limit_of_bodies(start) -> None:
    config = ServerConfig(api_key=("sesame",), max_body_bytes=1024, disable_uvicorn_access_log=True)
    server = start(FakeClient(), config)
    assert server.http.post("/extract-text", content=pdf("a"), headers=PDF).status_code == 401
    headers = {**PDF, "Authorization": "Bearer sesame"}
    large = pdf("a" * 2000)
    assert server.http.post("/extract-text", content=large, headers=headers).status_code == 413
    assert server.http.post("/extract-text", content=pdf("a"), headers=headers).status_code == 200
