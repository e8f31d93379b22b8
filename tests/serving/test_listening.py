"""Binding ports and Unix sockets, and the errors when that fails."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError, UsageError
from lmtool.serving.config import ListenConfig
from lmtool.serving.listening import bind, bind_proxy, explain, listen_at, parse_listen, proxy_url, url
from lmtool.trace.proxy import parse_target


@pytest.fixture
def taken() -> int:
    """A port on which somebody listens who speaks no protocol at all."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def test_port_0_takes_a_free_port_and_the_url_names_it() -> None:
    """Port 0 takes a free port, and the URL names it."""
    (bound,) = bind(ListenConfig(port=0))
    with bound:
        assert url(ListenConfig(port=0), [bound]) == f"ws://127.0.0.1:{bound.getsockname()[1]}/"


def test_frames_are_sent_at_once() -> None:
    """A connection does not wait for acknowledgements before it sends the next frame (TCP_NODELAY)."""
    (bound,) = bind(ListenConfig(port=0))
    with bound:
        bound.setblocking(True)
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_every_address_of_a_name_gets_the_same_port() -> None:
    """`localhost` may be 127.0.0.1 and ::1; a client may try either."""
    sockets = bind(ListenConfig("localhost", 0))
    try:
        assert len({s.getsockname()[1] for s in sockets}) == 1
    finally:
        for bound in sockets:
            bound.close()


def test_all_interfaces_are_reached_by_loopback_from_here() -> None:
    """A server on every interface is reached by loopback from this machine."""
    (bound,) = bind(ListenConfig("0.0.0.0", 0))
    with bound:
        assert url(ListenConfig("0.0.0.0"), [bound]).startswith("ws://127.0.0.1:")


@pytest.mark.parametrize(
    ("host", "public"), [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True)]
)
def test_public_means_that_other_machines_can_connect(host: str, public: bool) -> None:
    """Only a loopback name or address keeps other machines out."""
    assert ListenConfig(host).public is public


async def test_a_port_in_use_is_named_with_another_to_try(taken: int) -> None:
    """Who is there and says nothing within the limit is not taken for an LMTP server."""
    config = ListenConfig(port=taken)
    with pytest.raises(ResourceError) as refused:
        bind(config)
    error = await explain(config, refused.value)
    assert error.message == f"port {taken} is already in use"
    assert error.exit_code == 8
    assert any(f"--port {taken + 1}" in hint for hint in error.hints)


async def test_a_port_in_use_by_an_lmtp_server_says_so_and_which_model(served: str) -> None:
    """A port held by an LMTP server is told with its model and how to use it."""
    config = ListenConfig(port=int(served.rstrip("/").rpartition(":")[2]))
    with pytest.raises(ResourceError) as refused:
        bind(config)
    error = await explain(config, refused.value)
    assert "in use by an LMTP server (model stories260K)" in error.message
    assert any(hint.startswith("use it:") and f":{config.port} " in hint for hint in error.hints)


def test_an_unknown_host_is_refused_by_name() -> None:
    """A host name that means nothing is refused by name."""
    with pytest.raises(ResourceError, match=r"cannot listen on 'no\.such\.host\.invalid'"):
        bind(ListenConfig("no.such.host.invalid", 0))


def test_an_address_of_another_machine_is_refused() -> None:
    """An address that this machine does not have is refused."""
    with pytest.raises(ResourceError, match=r"cannot listen on 192\.0\.2\.1:0"):
        bind(ListenConfig("192.0.2.1", 0))


class TestProxies:
    """Where a proxy listens."""

    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [("8081", "127.0.0.1", 8081), (":0", "127.0.0.1", 0), ("[::1]:9", "::1", 9), ("a:1", "a", 1)],
    )
    def test_forms(self, text: str, host: str, port: int) -> None:
        """A port alone is one of this machine only."""
        found = parse_listen(text)
        assert (found.host, found.port) == (host, port)

    @pytest.mark.parametrize("text", ["", "a", "a:b", "127.0.0.1:70000"])
    def test_what_is_no_place(self, text: str) -> None:
        """It is refused with the forms there are."""
        with pytest.raises(UsageError) as caught:
            parse_listen(text)
        assert "HOST:PORT" in caught.value.hints[0]

    def test_clients_write_it_as_they_write_the_server(self) -> None:
        """An LMTP server's proxy is a ws URL, an HTTP server's one has its path."""
        place = parse_listen("0")
        sockets = bind_proxy(place, "--listen")
        port = sockets[0].getsockname()[1]
        assert proxy_url(place, sockets, parse_target("ws://a/")) == f"ws://127.0.0.1:{port}/"
        assert proxy_url(place, sockets, parse_target("https://a/v1")) == f"http://127.0.0.1:{port}/v1"
        with pytest.raises(ResourceError) as caught:
            bind_proxy(parse_listen(str(port)), "--proxy")
        assert "--proxy 127.0.0.1:0" in caught.value.hints[0]
        for one in sockets:
            one.close()


def test_only_its_owner_may_connect(tmp_path: Path) -> None:
    """The file has no rights for others from its first moment; it goes with the socket, which may be closed twice."""
    path = tmp_path / "s"
    listener = listen_at(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.close()
    assert not path.exists()
    listener.close()


def test_the_file_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    """One that was killed leaves its file; the next takes its place, and then keeps others out."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with listen_at(path), pytest.raises(ResourceError, match=f"a server listens at unix:{path} already"):
        listen_at(path)


def test_a_server_that_has_taken_the_path_keeps_it(tmp_path: Path) -> None:
    """Closing removes no file that somebody else has put there meanwhile."""
    path = tmp_path / "s"
    first = listen_at(str(path))
    path.unlink()
    with listen_at(str(path)):
        first.close()
        assert path.is_socket()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file", "is no socket, and is not replaced"), ("no/folder/s", "no such file"), ("x" * 200, "about 100 bytes")],
)
def test_where_nobody_can_listen(tmp_path: Path, name: str, reason: str) -> None:
    """What is wrong is said, with what to do; a file that is no socket stays as it is."""
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ResourceError, match=reason) as refused:
        listen_at(str(tmp_path / name))
    assert any("--unix PATH" in hint for hint in refused.value.hints)
    assert (tmp_path / "file").read_text() == "kept"


async def test_a_path_with_an_lmtp_server_says_so_and_which_model(tmp_path: Path) -> None:
    """A server that says nothing is one, too; it is not named as a model's."""
    config = ListenConfig(unix=str(tmp_path / "s"))
    (listener,) = bind(config)
    with listener:
        assert url(config, [listener]) == f"unix:{config.unix}"
        with pytest.raises(ResourceError) as refused:
            bind(config)
        assert (await explain(config, refused.value)).message == refused.value.message


def test_a_socket_is_no_port() -> None:
    """Both are refused where both were typed; a socket is never public, whatever the settings name as host."""
    with pytest.raises(UsageError, match="--unix and --port contradict each other"):
        ListenConfig(unix="s").check({"port", "unix"})
    with pytest.raises(UsageError, match="needs a path"):
        ListenConfig(unix="").check({"unix"})
    ListenConfig(unix="s").check({"unix"})
    ListenConfig(port=1).check({"port"})
    assert not ListenConfig("0.0.0.0", unix="s").public
    assert parse_listen("unix:/run/s") == parse_listen("unix:///run/s") == ListenConfig(unix="/run/s")
