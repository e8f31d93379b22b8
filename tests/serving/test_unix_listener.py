"""Listening Unix sockets: whose they are, what they replace, and when they go."""

import socket
import stat
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError, UsageError
from lmtool.serving.config import ListenConfig
from lmtool.serving.listening import bind, explain, listen_at, parse_listen, url


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
