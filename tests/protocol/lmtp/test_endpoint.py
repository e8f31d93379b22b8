"""The ways to write where a server is."""

import pytest

from lmtool.core.errors import UsageError
from lmtool.net.access.outgoing import key_in
from lmtool.protocol.lmtp import endpoint
from lmtool.protocol.lmtp.endpoint import CommandEndpoint, SocketEndpoint


@pytest.mark.parametrize(
    ("text", "url", "loopback"),
    [
        ("ws://127.0.0.1:8080/", "ws://127.0.0.1:8080/", True),
        ("ws://localhost:8080", "ws://localhost:8080/", True),
        ("wss://models.example", "wss://models.example/", False),
        ("http://localhost:8080", "ws://localhost:8080/", True),
        ("https://models.example/lmtp", "wss://models.example/lmtp", False),
        ("localhost:8080", "ws://localhost:8080/", True),
        ("10.0.0.5:8080", "ws://10.0.0.5:8080/", False),
        (":8080", "ws://127.0.0.1:8080/", True),
        ("[::1]:8080", "ws://[::1]:8080/", True),
        ("models.example", "ws://models.example/", False),
    ],
)
def test_sockets(text, url, loopback):
    """Every form means a WebSocket."""
    assert endpoint.parse(text) == SocketEndpoint(url, loopback)


def test_credentials():
    """They are shown in the handshake and nowhere else; a text's own come before a key for all servers."""
    own = endpoint.parse("ws://user:sesame@h:1/", "other")
    assert (own.url, key_in(own.authorization)) == ("ws://h:1/", "sesame")
    assert endpoint.parse("sesame@:8080").url == "ws://127.0.0.1:8080/"
    assert endpoint.parse("h:1", "other").authorization == "Bearer other"
    assert endpoint.parse(own, "third") is own
    assert "sesame" not in repr(own)
    assert "other" not in repr(endpoint.parse("h:1", "other"))


@pytest.mark.parametrize(
    "text", ["ws://u:ses/ame@h", "ftp://u:ses/ame@h", "u:sesame@", "ftp://u:sesame@h", "ws://u:sesame@h:x"]
)
def test_errors_tell_no_credentials(text):
    """Not even of a text that cannot be read because of them."""
    with pytest.raises(UsageError) as refused:
        endpoint.parse(text)
    told = repr((refused.value, refused.value.hints))
    assert "ses" not in told
    assert "ame" not in told.replace("names", "")


def test_commands():
    """`stdio:` has a command line, split as a shell would but without one."""
    assert endpoint.parse("stdio:lmtool serve --stdio 'my model'") == CommandEndpoint(
        ("lmtool", "serve", "--stdio", "my model")
    )


@pytest.mark.parametrize("text", ["", ":", "ftp://x", "ws://", "ws://x:port", ":99999", "stdio:", "stdio:'x", "ws://["])
def test_nonsense(text):
    """Anything else is refused, with the forms that are known."""
    with pytest.raises(UsageError) as refused:
        endpoint.parse(text)
    assert refused.value.hints


@pytest.mark.parametrize(
    ("words", "program"),
    [("lmtool serve", "lmtool"), ("env -uHOME A=b=c python3 -c x", "python3"), ("env A=b", "env")],
)
def test_a_program_has_a_name(words: str, program: str) -> None:
    """Also where `env` is what starts it."""
    command = endpoint.parse(f"stdio:{words}")
    assert isinstance(command, CommandEndpoint)
    assert command.program == program
