"""A pytest plugin for projects that speak to language models: recordings as a mock server, and a real server.

    def test_my_client(lmtp_mock):
        server = lmtp_mock("hello.lmtp.jsonl")
        assert my_client(server.url) == "Hello there"

`pytest --lmtp-recordings DIR` says where recordings are. Mocks answer LMTP over WebSocket at `url`, and whatever HTTP
was recorded, such as OpenAI streaming, at `http_url`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lmtool.trace.exchanges import RecordedRequest
    from lmtool.trace.matching import MatchMode, OnMiss

_START = 120.0
"""Seconds that a server may take to load its model."""
_STOP = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--lmtp-recordings` and `--lmtp-model`, each also an ini setting."""
    group = parser.getgroup("lmtp", "language models over LMTP (lmtool)")
    where = "folder of recordings for lmtp_mock"
    group.addoption("--lmtp-recordings", metavar="DIR", help=where)
    parser.addini("lmtp_recordings", where, default="recordings")
    what = "model that lmtp_server serves: a folder or a hub name; none: the one that comes with lmtool"
    group.addoption("--lmtp-model", metavar="MODEL", help=what)
    parser.addini("lmtp_model", what, default="")


def _setting(config: pytest.Config, name: str) -> str:
    value: Any = config.getoption(f"--{name.replace('_', '-')}")
    return str(value if value is not None else config.getini(name))


class LmtpMock:
    """A mock server in its own thread: sends recorded answers as fast as it can."""

    def __init__(self, recorded: list[RecordedRequest], match: MatchMode, on_miss: OnMiss, *, once: bool) -> None:
        from lmtool.trace.matching import Matcher, Pace
        from lmtool.trace.player import Player

        self.warnings: list[str] = []
        """A sentence for each request that no recording answered, with the nearest one."""
        self._matcher = Matcher(recorded, match, once=once)
        self._player = Player(self._matcher, Pace(None), on_miss, self.warnings.append)
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lmtp-mock", daemon=True)

    @property
    def url(self) -> str:
        """For LMTP clients: `ws://127.0.0.1:PORT/`."""
        return f"ws://127.0.0.1:{self._port}/"

    @property
    def http_url(self) -> str:
        """For clients of recorded HTTP, without a slash at its end: `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def answered(self) -> int:
        """Requests that a recording answered."""
        return self._player.answered

    @property
    def unused(self) -> list[RecordedRequest]:
        """Recorded requests that no client has sent."""
        return self._matcher.unused

    def start(self) -> LmtpMock:
        """Take connections on a free port of this machine."""
        listening = socket.create_server(("127.0.0.1", 0))
        self._port = listening.getsockname()[1]
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._player.listen([listening]), self._loop).result()
        return self

    def stop(self) -> None:
        """Cut what is open and end the thread."""
        asyncio.run_coroutine_threadsafe(self._player.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def lmtp_mock(request: pytest.FixtureRequest) -> Iterator[Callable[..., LmtpMock]]:
    """Start mock servers from recordings: `lmtp_mock("hello.lmtp.jsonl").url`; they end with the test.

    Names are relative to `--lmtp-recordings`; no name: every recording of that folder. match: `exact`, `prompt` or
    `order`; on_miss: `error`, `nearest`, `close` or `hang`; once: use each recorded answer once, so that a request too
    many is a miss. Requests that were not recorded are listed in the test's report.
    """
    config = request.config
    from_option = config.getoption("--lmtp-recordings") is not None  # relative to the folder where pytest was started
    folder = (config.invocation_params.dir if from_option else config.rootpath) / _setting(config, "lmtp_recordings")
    mocks: list[LmtpMock] = []

    def start(
        *names: str | Path,
        match: MatchMode = "exact",
        on_miss: OnMiss = "error",
        once: bool = False,
        reuse: bool = True,  # older name of `not once`
    ) -> LmtpMock:
        recorded = [one for path in _files(folder, names) for one in _recorded(path)]
        mocks.append(LmtpMock(recorded, match, on_miss, once=once or not reuse).start())
        return mocks[-1]

    yield start
    for mock in mocks:
        mock.stop()
        for warning in mock.warnings:
            sys.stderr.write(f"lmtp_mock: {warning}\n")  # shown with the test if it failed


def _files(folder: Path, names: tuple[str | Path, ...]) -> list[Path]:
    if names:
        return [folder / name for name in names]
    recordings = sorted((*folder.glob("**/*.lmtp.jsonl"), *folder.glob("**/*.lmtp.jsonl.gz")))
    if not recordings:
        pytest.fail(f"there are no recordings (*.lmtp.jsonl) in {folder}; name the folder: --lmtp-recordings DIR")
    return recordings


def _recorded(path: Path) -> list[RecordedRequest]:
    from lmtool.core.errors import FileError
    from lmtool.trace.exchanges import recorded_requests
    from lmtool.trace.reader import TraceReader

    try:
        return recorded_requests(event for _, event in TraceReader(path).with_offsets(whole=True))
    except FileError as error:
        pytest.fail(f"{error.message} (see --lmtp-recordings)")


@pytest.fixture(scope="session")
def lmtp_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start `lmtool serve` once for all tests of this run; the value is its URL. `--lmtp-model` says which model."""
    model = _setting(request.config, "lmtp_model")
    ready = tmp_path_factory.mktemp("lmtp") / "ready"
    log = ready.with_name("log")
    words = [sys.executable, "-m", "lmtool", "serve", *([model] if model else []), "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the words are our own and the model's name
            [*words, "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "LMTOOL_API_KEY"},  # the tests have none
        )
    try:
        yield _url_of(process, ready, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url_of(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    """Wait for the ready file; fail with what the server said when it ends or takes too long."""
    end = time.monotonic() + _START
    while not (ready.exists() and (url := ready.read_text().strip())):
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"lmtool serve is not ready:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    return url
