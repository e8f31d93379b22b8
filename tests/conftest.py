"""What every test may use: an environment of its own, and one server process that all share."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.forkserver import LMTOOL, ForkedProcess, spawn
from tests.slow_files import SLOW_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Run = Callable[..., subprocess.CompletedProcess[str]]
    StartServer = Callable[..., contextlib.AbstractContextManager["ServerProcess"]]

# Before torch is loaded: processes share the processors, and threads that wait by spinning would take half of them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A parent that ignores Ctrl-C hands that on to every program under test; a handler of our own is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the same examples each time: a push is not stopped by luck, and wall time tells nothing on a busy machine
settings.register_profile("hunt", settings.get_profile("steady"), derandomize=False, max_examples=2000)
settings.load_profile("steady")

ROOT = Path(__file__).parent.parent
STORIES = ROOT / "tests/data/stories260K"
"""A real, trained model of 260K parameters: text in, text out, no chat template."""
PATIENCE = 60.0
"""Seconds after which a process that says nothing counts as hung: generous, the machine may be busy."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Workers of `-n logical`: one more than processors, because a fifth of the time tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Let xdist hand out files in the order of `pytest_collection_modifyitems`; its own is by the number of tests."""
    config.option.loadscopereorder = False


def pytest_collectstart() -> None:
    """Collect tests, not garbage: what is imported stays, and looking through it takes half of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of all further garbage collections."""
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Collect garbage after each file; what stays, such as a package that it imported, is not looked through again."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first: none is left for one worker alone at the end."""
    items.sort(key=lambda item: -SLOW_FILES.get(item.nodeid.partition("::")[0].removeprefix("tests/"), 0))


@pytest.fixture(scope="session", autouse=True)
def _data_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep conversations of tests out of the user's own data folder."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep settings, caches and variables of whoever runs the tests out of this one; it runs in `tmp_path`."""
    for name in [n for n in os.environ if n.startswith("LMTOOL_")]:
        monkeypatch.delenv(name)
    for name, value in _clean(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def _clean(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),  # kernels compiled once
        "HF_HOME": str(home / "hub"),
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "",  # lmtool is installed
    }


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that brings logits processors, installed for this test."""
    from lmtool.core import logits_processors
    from tests.plugin import MODULE, install

    folder = tmp_path / "plugin"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(install(folder)))
    logits_processors._factory.cache_clear()
    yield
    logits_processors._factory.cache_clear()
    sys.modules.pop(MODULE, None)


@pytest.fixture
def lmtool(clean_environment: None) -> Run:
    """Run `lmtool WORDS...` to its end in a clean environment (`tmp_path` is its folder); text in, text out."""

    def run(*words: str, stdin: str = "", timeout: float = PATIENCE, **env: str) -> subprocess.CompletedProcess[str]:
        with spawn(words, env={**os.environ, **env}, heavy=words[:1] == ("serve",) or "--serve" in words) as process:
            try:
                output, errors = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.wait(), output, errors)

    return run


@dataclass
class ServerProcess:
    """A running `lmtool serve`, and what it says line by line."""

    process: subprocess.Popen[str] | ForkedProcess
    lines: list[str] = field(default_factory=list)
    """What was read so far, from stdout and stderr together."""
    _fresh: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    url: str = ""
    """Known once the `listen` line was read."""

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._fresh.put(line.rstrip("\n"))
        self._fresh.put(None)

    def expect(self, part: str, seconds: float = PATIENCE) -> str:
        """Return the next line that holds `part`; fails with everything said when the process ends without it.

        seconds: without a line after which it counts as hung.
        """
        while (line := self._fresh.get(timeout=seconds)) is not None:
            self.lines.append(line)
            if " listen " in line or '"listening"' in line:
                self.url = re.findall(r"(?:wss?://|unix:)[^\s\"]+", line)[0]
            if part in line:
                return line
        pytest.fail(f"the server ended without saying {part!r}:\n" + "\n".join(self.lines))

    def rest(self) -> list[str]:
        """Wait for the end; return the lines not yet read."""
        found = []
        while (line := self._fresh.get(timeout=PATIENCE)) is not None:
            found.append(line)
        self.lines += found
        self.process.wait(PATIENCE)
        return found

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Return the exit status."""
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> StartServer:
    """Start `lmtool serve WORDS...`, or another `command`, on a free port; a context manager that ends it.

    `expect("ready")` waits for it. `port`: None to listen elsewhere. `python`: the Python of another environment.
    `program`: what stands for lmtool.
    """

    @contextlib.contextmanager
    def start(
        *words: str,
        port: str | None = "0",
        command: str = "serve",
        python: str = sys.executable,
        program: tuple[str, ...] = LMTOOL,
        **env: str,
    ) -> Iterator[ServerProcess]:
        home = tmp_path_factory.mktemp("server")
        process = spawn(
            [command, *words, *([] if port is None else ["--port", port])],
            program=(python, *program),
            heavy=True,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=home,
            env={**{n: v for n, v in os.environ.items() if not n.startswith("LMTOOL_")}, **_clean(home), **env},
        )
        try:
            yield ServerProcess(process)
        finally:
            _end(process)

    return start


def _end(process: subprocess.Popen[str] | ForkedProcess) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> Iterator[ServerProcess]:
    """One server process on the stories model, shared by all tests of this run."""
    with start_server(str(STORIES)) as process:
        process.expect("ready in")
        yield process


@pytest.fixture(scope="session")
def served(server: ServerProcess) -> str:
    """The URL of a server process on the stories model (`stories260K`), shared by all tests of this run."""
    return server.url


@pytest.fixture(scope="session")
def keyed(start_server: StartServer) -> Iterator[ServerProcess]:
    """A server process on the stories model that asks for a key, `knocking.KEY`, shared by all tests of this run."""
    from tests.net.access.knocking import KEY

    with start_server(str(STORIES), LMTOOL_API_KEY=KEY) as process:
        process.expect("ready in")
        yield process


@pytest.fixture(scope="session")
def embedded(start_server: StartServer) -> Iterator[str]:
    """The URL of a server process on the embedded model, shared by all tests of this run."""
    with start_server() as process:
        process.expect("ready in")
        yield process.url
