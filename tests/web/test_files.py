"""`--path`: a folder of the operator's own files in front of the API."""

from functools import partial
from pathlib import Path

import httpx
import pytest

from pagoda.config.server import ServerConfig
from pagoda.web.files import Files
from tests.server.conftest import RunningServer, running
from tests.server.fakes import FakeClient


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "secret.txt").write_text("beside the folder")
    public = folder / "public"
    (public / "more").mkdir(parents=True)
    (public / "index.html").write_text("<h1>home</h1>")
    (public / "more" / "index.html").write_text("<h1>more</h1>")
    (public / "app.js").write_text("1")
    (public / "out.txt").symlink_to(folder / "secret.txt")
    files = partial(Files, folder=str(public), root_path="/llm")
    config = ServerConfig(api_key=("sesame",), root_path="/llm")
    with running(FakeClient(), config, files) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "text"),
    [("/", "home"), ("/llm/", "home"), ("/index.html", "home"), ("/more/", "more"),
     ("/app.js", "1"), ("/llm/app.js", "1")],
)  # fmt: skip
def test_files_are_served_by_their_paths(site: RunningServer, path, text):
    reply = site.http.get(path)
    assert (reply.status_code, text in reply.text) == (200, True)
    assert site.http.head(path).status_code == 200


def test_the_api_is_behind_them(site: RunningServer):
    assert site.http.get("/health").status_code == 200
    assert site.http.get("/v1/models").status_code == 401
    assert site.http.post("/", json={}).status_code in (401, 404, 405)


@pytest.mark.parametrize(
    "path",
    ["/none.html", "/more", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/out.txt", "/a%00b",
     "/" + "x" * 5000, "//etc/passwd"],
)  # fmt: skip
def test_nothing_else_is(site: RunningServer, path):
    reply = httpx.get(site.url + path, headers={"Authorization": "Bearer sesame"})
    assert reply.status_code == 404
    assert "beside" not in reply.text
