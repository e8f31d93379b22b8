"""Other people's clients with a key: LMQL's, Anthropic's SDK, and web pages in Chromium.

    apt-get install chromium
    LMTOOL_CHROMIUM=/usr/bin/chromium pytest -m peer tests/peer/test_access.py

The other environments, LMTOOL_LMQL_PYTHON and LMTOOL_SDKS, are those of test_lmql.py and test_http_clients.py.
OpenAI's SDK is in tests/net/access.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from tests.conftest import STORIES
from tests.net.access.knocking import KEY
from tests.peer.quoting_server import quoting

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.peer.conftest import Lmql

HERE = Path(__file__).parent
PATIENCE = 120.0
CHROMIUM = "LMTOOL_CHROMIUM"
GOOD, EVIL = "pages.example", "evil.example"
"""Names that the browser takes for this machine, as a rebound name is."""
STORY = ", there was a"

pytestmark = pytest.mark.peer


class Pages:
    """A web server of one page, which tells here what it found."""

    def __init__(self) -> None:
        found: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = (HERE / "access_page.html").read_bytes()
                self.send_response(200 if self.path.startswith("/?") else 404)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(page)

            def do_POST(self) -> None:
                found.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        self.found = found
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """The web server; the test is skipped where there is no browser."""
    if not os.environ.get(CHROMIUM):
        pytest.skip(f"{CHROMIUM} names no Chromium")
    made = Pages()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@contextlib.contextmanager
def browsing(url: str, folder: Path) -> Iterator[None]:
    """A headless Chromium at a page, with nothing of anybody's in its folder."""
    switches = [
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
    ]
    switches += ["disable-component-update", "disable-sync", f"user-data-dir={folder}"]
    switches += [f"host-resolver-rules=MAP {GOOD} 127.0.0.1, MAP {EVIL} 127.0.0.1"]
    process = subprocess.Popen(
        [os.environ[CHROMIUM], *(f"--{one}" for one in switches), url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def visited(pages: Pages, host: str, base: str, folder: Path) -> dict[str, Any]:
    """What the page of an origin found at a server."""
    url = f"http://{host}:{pages.port}/?{urlencode({'base': base, 'key': KEY})}"
    with browsing(url, folder):
        return pages.found.get(timeout=PATIENCE)


@contextlib.contextmanager
def recorder(target: str, *words: str) -> Iterator[str]:
    """`lmtool trace record` in front of a server, with the same key; where its clients connect."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lmtool", "trace", "record", "--to", target, "--listen", "127.0.0.1:0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LMTOOL_API_KEY": KEY},
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        yield re.findall(r"recording (\S+?)/? ", line)[0].replace("ws://", "http://")
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


@pytest.fixture(scope="module")
def server(pages: Pages, start_server: StartServer) -> Iterator[ServerProcess]:
    """A server with a key that lets pages of one origin in."""
    with start_server(
        str(STORIES), "--allow-origin", f"http://{GOOD}:{pages.port}", "--dtype", "float32", LMTOOL_API_KEY=KEY
    ) as process:
        process.expect("ready in")
        yield process


def base_of(server: ServerProcess) -> str:
    return server.url.replace("ws://", "http://").rstrip("/")


def requests(server: ServerProcess) -> list[str]:
    """What the server has counted of requests."""
    asked = urllib.request.Request(f"{base_of(server)}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith("lmtool_requests_total")]


@pytest.mark.parametrize("through", ["directly", "through a recorder"])
def test_a_page_that_is_allowed(server: ServerProcess, pages: Pages, tmp_path: Path, through: str) -> None:
    """It shows its key in a header after a preflight, in a stream, and as a subprotocol; it may read its errors."""
    trace = tmp_path / "page.lmtp.jsonl"
    words = ("-O", str(trace), "--allow-origin", f"http://{GOOD}:{pages.port}")
    way = contextlib.nullcontext(base_of(server)) if through == "directly" else recorder(server.url, *words)
    with way as base:
        found = visited(pages, GOOD, base, tmp_path / "browser")
    completion = found["completion"]
    assert (completion["status"], completion["body"]["choices"][0]["text"]) == (200, STORY)
    assert found["streamed"] == {"status": 200, "text": STORY}
    for case in ("wrong key", "no key"):
        assert found[case]["status"] == 401
        assert "Authorization: Bearer KEY" in found[case]["body"]["error"]["message"]
    assert found["blind"] == {"status": 0, "type": "opaque"}
    assert found["socket"] == {"protocol": "lmtp", "text": STORY}
    assert found["wrong socket"] == {"failed": "error"}
    if through != "directly":
        assert "there" in trace.read_text()
        assert KEY not in trace.read_text()


def test_a_page_that_is_not(server: ServerProcess, pages: Pages, tmp_path: Path) -> None:
    """With the right key in its hands, a page of another origin reads nothing and starts nothing."""
    before = requests(server)
    found = visited(pages, EVIL, base_of(server), tmp_path / "browser")
    for case in ("completion", "wrong key", "no key", "streamed"):
        assert found[case] == {"failed": "TypeError"}
    assert found["blind"] == {"status": 0, "type": "opaque"}
    assert found["picture"] == "error"
    assert found["socket"] == found["wrong socket"] == {"failed": "error"}
    assert requests(server) == before


def test_a_rebound_page(pages: Pages, start_server: StartServer, tmp_path: Path) -> None:
    """A page that asks this machine under its own name gets nothing from a server that asks for no key, either."""
    with start_server(str(STORIES)) as server:
        server.expect("ready in")
        port = server.url.rstrip("/").rpartition(":")[2]
        found = visited(pages, EVIL, f"http://{EVIL}:{port}", tmp_path / "browser")
        with urllib.request.urlopen(f"{base_of(server)}/metrics", timeout=PATIENCE) as answer:
            assert b"lmtool_requests_total{" not in answer.read()
    assert found["completion"] == found["no key"] == {"failed": "TypeError"}
    assert found["socket"] == {"failed": "error"}


def test_lmql(lmql: Lmql, tiny_gpt2: Path, start_server: StartServer) -> None:
    """LMQL's endpoint carries the key as basic credentials; its queries run, and without the key they do not."""
    with start_server(str(tiny_gpt2), "--dtype", "float32", LMTOOL_API_KEY=KEY) as server:
        server.expect("ready in")
        place = f"localhost:{server.url.rstrip('/').rpartition(':')[2]}"
        found = lmql.run("lmql_query.py", f"user:{KEY}@{place}", str(tiny_gpt2), cwd=tiny_gpt2)
        assert found["choice"][0]["variables"]["X"] in {"yes", "no"}
        tokens = lmql.run("lmql_client.py", f"http://user:{KEY}@{place}", str(tiny_gpt2), cwd=tiny_gpt2)
        assert len(tokens["greedy"]) == 8
        for wrong in (place, f"user:wrong@{place}"):
            with pytest.raises(AssertionError, match="401"):
                lmql.run("lmql_client.py", f"http://{wrong}", str(tiny_gpt2), cwd=tiny_gpt2)


def test_anthropics_sdk(start_server: StartServer, tmp_path: Path) -> None:
    """All that it does, with its key in its own header; a wrong key is its class of error."""
    sdks = os.environ.get("LMTOOL_SDKS")
    if not sdks:
        pytest.skip("LMTOOL_SDKS names no folder of environments")
    command = [f"{sdks}/anthropic/bin/python", str(HERE / "clients/anthropic_client.py")]
    with start_server("lmtool-tiny", LMTOOL_API_KEY=KEY) as server, quoting() as quoted:
        server.expect("ready in")
        ends = []
        for key in (KEY, "wrong"):
            done = subprocess.run(
                [*command, base_of(server), quoted],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                cwd=tmp_path,
                env={**os.environ, "ANTHROPIC_API_KEY": key},
                check=False,
            )
            ends.append((done.returncode, done.stdout + done.stderr))
    assert ends[0][0] == 0, ends[0][1]
    assert json.loads(ends[0][1].splitlines()[-1])["apis"]["messages"]["stream"] == "The capital of France is Paris."
    assert ends[1][0] != 0
    assert "AuthenticationError" in ends[1][1]
    assert "authentication_error" in ends[1][1]
