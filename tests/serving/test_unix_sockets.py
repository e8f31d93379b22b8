"""A server on a Unix socket, by every client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

import lmtool as lmtool_package
from tests.cli.test_keys import CLIENTS
from tests.conftest import STORIES
from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from tests.conftest import Run, ServerProcess, StartServer

OVER_LMTP = {name: words for name, words in CLIENTS.items() if "URL" in words}
IDS = [1, 403, 407, 261, 378]


@pytest.fixture(scope="module")
def at_socket(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server process that listens at a Unix socket, and asks for a key."""
    path = tmp_path_factory.mktemp("unix") / "s"
    with start_server(str(STORIES), "--unix", str(path), port=None, LMTOOL_API_KEY=KEY) as process:
        process.expect("ready in")
        assert process.url == f"unix:{path}"
        yield process


def test_the_command_that_is_shown_connects(at_socket: ServerProcess, lmtool: Run) -> None:
    """The line of the server's address has one."""
    (line,) = [line for line in at_socket.lines if " listen " in line]
    assert f"lmtool chat -e {at_socket.url} " in line
    done = lmtool("chat", "-e", at_socket.url, "Once upon a time max_tokens=5", LMTOOL_API_KEY=KEY)
    assert done.stdout.strip() == ", there was a little", done.stderr


@pytest.mark.parametrize("client", OVER_LMTP)
def test_every_client(at_socket: ServerProcess, lmtool: Run, client: str) -> None:
    """Those that speak LMTP get there; the key is asked for as on a port."""
    words = [word.replace("URL", at_socket.url) for word in OVER_LMTP[client]]
    assert lmtool(*words, LMTOOL_API_KEY="sesame").returncode == 4
    done = lmtool(*words, LMTOOL_API_KEY=KEY)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_from_python(at_socket: ServerProcess) -> None:
    """LMTP, Evergreen and HTTP are behind the one socket."""
    async with lmtool_package.connect(at_socket.url, api_key=KEY) as model:
        ids = [output.token async for output in model.generate(IDS, max_tokens=3)]
    async with lmtool_package.session(at_socket.url, api_key=KEY) as session:
        text = "".join([piece async for piece in session.generate("Once upon a time", max_tokens=5)])
    assert (len(ids), text.strip()) == (3, ", there was a little")
    connector = aiohttp.UnixConnector(at_socket.url.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector, headers={"x-api-key": KEY}) as http,
        http.get("http://localhost/v1/models") as models,
    ):
        assert (await models.json())["data"][0]["id"] == "stories260K"


async def test_a_server_of_this_process(tmp_path: Path) -> None:
    """`lmtool.serve(unix=...)` leaves no file behind."""
    path = tmp_path / "s"
    async with (
        lmtool_package.serve(str(STORIES), unix=str(path), device="cpu") as server,
        lmtool_package.connect(server.url) as model,
    ):
        assert len([output async for output in model.generate(IDS, max_tokens=2)]) == 2
    assert not path.exists()


def test_pools(start_server: StartServer, lmtool: Run, tmp_path: Path) -> None:
    """A gateway's pools are asked over HTTP; a member may be behind another socket."""
    with start_server("--unix", str(tmp_path / "model"), port=None) as server:
        server.expect("ready in")
        words = ("-e", server.url, "--unix", str(tmp_path / "pools"))
        with start_server(*words, command="gateway", port=None) as gateway:
            gateway.expect("ready in")
            asked = lmtool("pools", "-e", gateway.url)
            assert (asked.returncode, "default" in asked.stdout) == (0, True), asked.stderr
            said = lmtool("chat", "-e", gateway.url, "What is 2 + 2?")
            assert said.stdout.strip() == "2 + 2 = 4", said.stderr


def test_a_balancer_and_its_worker(start_server: StartServer, lmtool: Run, tmp_path: Path) -> None:
    """Both ends of it may be sockets."""
    with start_server(str(STORIES), "--unix", str(tmp_path / "worker"), port=None) as worker:
        worker.expect("ready in")
        with start_server(worker.url, "--unix", str(tmp_path / "front"), command="balance", port=None) as front:
            front.expect("ready in")
            said = lmtool("chat", "-e", front.url, "Once upon a time max_tokens=5")
            assert said.stdout.strip() == ", there was a little", said.stderr


def test_a_recording_proxy_between_two_sockets(
    at_socket: ServerProcess, start_server: StartServer, lmtool: Run, tmp_path: Path
) -> None:
    """What went through is in the file, and the server says the same again to it."""
    file, place = tmp_path / "seen.lmtp.jsonl", f"unix:{tmp_path / 'proxy'}"
    words = ("record", "--listen", place, "--to", at_socket.url, "--output", str(file))
    with start_server(*words, command="trace", port=None, LMTOOL_API_KEY="") as proxy:
        proxy.expect(f"recording {place} → {at_socket.url}")
        said = lmtool("chat", "-e", place, "Once upon a time max_tokens=5", LMTOOL_API_KEY=KEY)
        assert said.stdout.strip() == ", there was a little", said.stderr
        proxy.interrupt()
        assert proxy.wait() == 0
    again = lmtool("trace", "verify", str(file), "--to", at_socket.url, LMTOOL_API_KEY=KEY)
    assert again.returncode == 0, again.stdout + again.stderr


def test_ctrl_c_takes_the_file_along(start_server: StartServer, tmp_path: Path) -> None:
    """Also while the model loads, when the process ends at once."""
    for moment in ("listen", "ready in"):
        path = tmp_path / "s"
        with start_server(str(STORIES), "--unix", str(path), port=None) as server:
            server.expect(moment)
            assert path.is_socket()
            server.interrupt()
            server.wait()
        assert not path.exists(), moment


def test_what_contradicts_and_what_is_not_there(lmtool: Run, tmp_path: Path) -> None:
    """Status 2 for two places to listen at, and for an address without a path; a missing server is named."""
    for command in (["serve"], ["balance", ":1"], ["gateway"]):
        done = lmtool(*command, "--unix", "s", "--port", "0")
        assert done.returncode == 2
        assert "--unix and --port contradict each other" in done.stderr
    assert lmtool("serve", "--stdio", "--unix", "s").returncode == 2
    assert "it names no path" in lmtool("info", "-e", "unix:").stderr
    gone = lmtool("chat", "-e", f"unix:{tmp_path}/s", "Hello")
    assert gone.returncode == 3
    assert f"no LMTP server at unix:{tmp_path}/s (no such file or directory)" in gone.stderr
