"""The pytest plugin, used as another project would."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from lmtool.trace.events import Done, JsonText, Piece, Request, Response
from tests.trace.conftest import CONVERSATION

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent.parent
STREAM = (
    Request(0.1, 1, "POST", "/v1/chat/completions", {}, JsonText("", {"model": "m", "stream": True}, "py")),
    Response(0.2, 1, 200, "OK", {"content-type": "text/event-stream"}),
    Piece(0.2, "sse", 1, JsonText("data: ", {"choices": [{"delta": {"content": "Hi"}}]}, "py")),
    Piece(0.3, "sse", 1, "data: [DONE]\n\n"),
    Done(0.3, 1),
)
CLIENT = """
import json, urllib.request
from websockets.sync.client import connect

def ask(url, prompt=(5, 6, 7)):
    with connect(url) as server:
        request = {"model": "m", "prompt": list(prompt), "stream_id": 9}
        server.send("GENERATE " + json.dumps(request))
        tokens, last = [], None
        while last is None:
            entry = json.loads(server.recv().partition(" ")[2])[0]
            if "error" in entry:
                raise RuntimeError(entry["error"])
            tokens.append(entry["token"])
            last = entry["finish_reason"]
    return tokens

def complete(url):
    body = json.dumps({"model": "m", "stream": True}).encode()
    with urllib.request.urlopen(url + "/v1/chat/completions", body) as answer:
        return answer.read().decode()
"""


@pytest.fixture
def project(pytester: pytest.Pytester, write_trace: object, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with a client, two recordings, and pytest that has the plugin."""
    for name in [name for name in os.environ if name.startswith("LMTOOL_")]:
        monkeypatch.delenv(name)
    for name, value in {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    folder = pytester.mkdir("recorded")
    for name, events in (("hello.lmtp.jsonl", CONVERSATION), ("openai.lmtp.jsonl", STREAM)):
        write_trace(events, name).rename(folder / name)
    pytester.makepyfile(client=CLIENT)
    pytester.syspathinsert()
    return pytester


def run(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    """Run pytest in it; with this plugin alone, by its module's name."""
    plugin = ("-p", "lmtool.trace.pytest_plugin", "-p", "no:cacheprovider")
    return project.runpytest_subprocess(*plugin, *words)


def test_a_mock_in_three_lines(project: pytest.Pytester) -> None:
    """A recording answers a client, over LMTP and over HTTP with server-sent events."""
    project.makepyfile(
        """
        import pytest
        from client import ask, complete

        def test_my_client(lmtp_mock):
            server = lmtp_mock("hello.lmtp.jsonl")
            assert ask(server.url) == [11, 12, 13]

        def test_openai(lmtp_mock):
            server = lmtp_mock("openai.lmtp.jsonl")
            assert "Hi" in complete(server.http_url)

        def test_everything_in_the_folder(lmtp_mock):
            server = lmtp_mock()
            assert len(server.unused) == 2
            ask(server.url)
            complete(server.http_url)
            assert (server.answered, server.unused) == (2, [])

        def test_again(lmtp_mock):
            server = lmtp_mock("hello.lmtp.jsonl")
            assert ask(server.url) == ask(server.url)
            assert server.answered == 2

        def test_once(lmtp_mock):
            for server in (lmtp_mock("hello.lmtp.jsonl", once=True), lmtp_mock("hello.lmtp.jsonl", reuse=False)):
                ask(server.url)
                with pytest.raises(RuntimeError, match="no recorded request matches"):
                    ask(server.url)
                assert "all recorded answers to this request were used" in server.warnings[0]
        """
    )
    run(project, "--lmtp-recordings", "recorded").assert_outcomes(passed=5)


def test_requests_that_are_not_recorded(project: pytest.Pytester) -> None:
    """The client gets an error, and the report says what was asked and what is nearest."""
    project.makepyfile(
        """
        from client import ask

        def test_my_client(lmtp_mock):
            server = lmtp_mock("hello.lmtp.jsonl")
            ask(server.url, prompt=(5, 6, 8))
        """
    )
    result = run(project, "--lmtp-recordings", "recorded")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*lmtp_mock: no recorded request matches this GENERATE*prompt differs at 2*"])


def test_the_folder_is_a_setting_too(project: pytest.Pytester) -> None:
    """`lmtp_recordings` in the ini file; a folder without recordings, or a name that is missing, fails in words."""
    project.makeini("[pytest]\nlmtp_recordings = recorded\n")
    project.makepyfile(
        """
        def test_found(lmtp_mock):
            lmtp_mock("hello.lmtp.jsonl")

        def test_missing(lmtp_mock):
            lmtp_mock("bye.lmtp.jsonl")
        """
    )
    result = run(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*cannot read*bye.lmtp.jsonl*"])
    empty = run(project, "--lmtp-recordings", "nowhere", "-k", "none")
    assert empty.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    project.makepyfile("def test_none(lmtp_mock):\n    lmtp_mock()\n")
    nowhere = run(project, "--lmtp-recordings", "nowhere")
    nowhere.stdout.fnmatch_lines(["*there are no recordings*nowhere*--lmtp-recordings DIR*"])


def test_a_real_server(project: pytest.Pytester) -> None:
    """`lmtp_server` is the URL of `lmtool serve` with the model that was named."""
    project.makepyfile(
        """
        import json
        from websockets.sync.client import connect

        def test_real(lmtp_server):
            with connect(lmtp_server) as server:
                server.send('MODEL_INFO {"stream_id": 1}')
                info = json.loads(server.recv().partition(" ")[2])[0]["model_info"]
            assert info["model"] == "stories260K"
        """
    )
    model = str(ROOT / "tests/data/stories260K")
    run(project, f"--lmtp-model={model}").assert_outcomes(passed=1)


def test_a_model_that_cannot_be_served(project: pytest.Pytester) -> None:
    """The test fails with what the server said."""
    project.makepyfile("def test_real(lmtp_server):\n    pass\n")
    result = run(project, "--lmtp-model", "./nowhere")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*lmtool serve is not ready*", "*there is no model folder*"])


def test_it_is_installed() -> None:
    """The entry point names the plugin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"lmtp": "lmtool.trace.pytest_plugin"}
