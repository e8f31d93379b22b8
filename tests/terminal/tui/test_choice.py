"""What the inspector watches, from its command line."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import AccessDeniedError, ConnectError, FileError, UsageError
from lmtool.core.types import ModelInfo, TokenizerInfo
from lmtool.net.access.outgoing import key_in
from lmtool.serving.access_config import AccessConfig
from lmtool.terminal.chat.peer import local_tokenizer
from lmtool.terminal.tui.options import SourceOptions
from lmtool.terminal.tui.sources.choice import SourceFactory, is_address, is_file
from lmtool.terminal.tui.sources.connect import ConnectSource
from lmtool.terminal.tui.sources.demo import DemoSource
from lmtool.terminal.tui.sources.proxy import ProxySource
from lmtool.terminal.tui.sources.source import HTTP_ALONE, FileSource
from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import ServerProcess

RECORDING = Path(__file__).parents[3] / "recordings/two_streams_interleaved.lmtp.jsonl"


def factory(
    warn: Callable[[str], None] = pytest.fail, access: AccessConfig | None = None, **options: object
) -> SourceFactory:
    """The factory of the command line with these options."""
    choice = SourceOptions(**options)  # type: ignore[arg-type]
    return SourceFactory(choice, warn, access or AccessConfig(), local_tokenizer)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "text",
    ["ws://a/", ":8080", "localhost:8080", "user:key@localhost:8080", "stdio:lmtool serve --stdio", "https://a/v1"],
)
def test_addresses(text: str) -> None:
    """All forms of an endpoint are servers."""
    assert is_address(text)


@pytest.mark.parametrize("text", ["a.lmtp.jsonl", "folder/a.jsonl.gz", "name"])
def test_files(text: str, tmp_path: Path) -> None:
    """Everything else is a file, there or not."""
    assert not is_address(text)
    assert not is_file(str(tmp_path / text))


async def test_a_trace() -> None:
    """A file is read; with a server beside it, it can be branched."""
    source = await factory(targets=(str(RECORDING),)).make()
    assert isinstance(source, FileSource)
    assert not source.takes_requests
    await source.close()
    with_server = await factory(targets=(str(RECORDING),), connect=("ws://127.0.0.1:1/",)).make()
    assert with_server.takes_requests
    await with_server.close()


async def test_a_file_that_is_not_there() -> None:
    """It says what would be possible."""
    with pytest.raises(FileError, match="no file 'nonsense'") as caught:
        await factory(targets=("nonsense",)).make()
    assert any("ws://HOST:PORT" in hint for hint in caught.value.hints)


async def test_a_server() -> None:
    """A URL, or one given by --endpoint or --connect alone, is connected to with its prompts."""
    for wanted in ({"targets": (":81",)}, {"endpoint": ":81"}, {"connect": (":81",)}):
        source = await factory(**wanted, prompts=("a", "b")).make()
        assert isinstance(source, ConnectSource)
        assert source.title == "connect :81"


async def test_an_openai_url_needs_the_proxy() -> None:
    """A server that has no LMTP is watched from between."""
    with pytest.raises(UsageError) as caught:
        await factory(targets=("http://127.0.0.1:1/v1",)).make()
    assert "--proxy" in caught.value.hints[0]


async def test_a_proxy() -> None:
    """--proxy and --to go together, with no target; the port is taken at once."""
    source = await factory(proxy="127.0.0.1:0", to="ws://127.0.0.1:1/").make()
    assert isinstance(source, ProxySource)
    assert source.url.startswith("ws://127.0.0.1:")
    await source.close()
    for wrong in ({"proxy": ":0"}, {"to": "ws://a/"}, {"proxy": ":0", "to": "ws://a/", "targets": ("x",)}):
        with pytest.raises(UsageError):
            await factory(**wrong).make()


async def test_other_machines_are_warned_of() -> None:
    """A proxy on every interface needs a key, or says that anybody can use it."""
    told: list[str] = []
    with pytest.raises(UsageError, match="no key is asked for"):
        await factory(told.append, proxy="0.0.0.0:0", to="ws://127.0.0.1:1/").make()
    for access, key in ((AccessConfig(no_auth=True), None), (AccessConfig(), "key")):
        source = await factory(told.append, access, proxy="0.0.0.0:0", to="ws://127.0.0.1:1/", api_key=key).make()
        await source.close()
    assert [sentence.partition(",")[0] for sentence in told] == ["other machines can connect"]


async def test_a_key_for_the_server_behind_is_for_requests_from_here() -> None:
    """It is not added to what clients of the proxy send, and that is told."""
    told: list[str] = []
    made = factory(told.append, proxy="127.0.0.1:0", to="ws://user:sesame@127.0.0.1:1/")
    source = await made.make()
    assert isinstance(source, ProxySource)
    assert key_in(source._requests._endpoint.authorization) == "sesame"
    assert "clients of the proxy show their own" in told[0]
    assert "sesame" not in repr((source.title, source.url, told, made.options))
    await source.close()


async def test_a_server_that_wants_a_key_is_no_reason_for_a_demo(keyed: ServerProcess) -> None:
    """The server at the default address is there: it is said what it wants, and nothing else is started."""
    with pytest.raises(AccessDeniedError, match="asks for an API key"):
        await factory(default=keyed.url).make()
    assert isinstance(await factory(default=keyed.url, api_key=KEY).make(), ConnectSource)


async def test_nothing_named(embedded: str) -> None:
    """The server that answers at the default address, else the demo."""
    source = await factory(default=embedded).make()
    assert isinstance(source, ConnectSource)
    assert isinstance(await factory(default=f"ws://127.0.0.1:{free_port()}/").make(), DemoSource)


async def test_a_client_installation_has_no_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages that serve, it says so and what else there is."""
    monkeypatch.setattr("lmtool.serving.composition.SERVE_PACKAGES", ("no_such_package",))
    with pytest.raises(ConnectError, match="no_such_package") as caught:
        await factory(default=f"ws://127.0.0.1:{free_port()}/").make()
    assert any("pip install" in hint for hint in caught.value.hints)


async def test_more_than_one_target() -> None:
    """Two traces are compared elsewhere; other pairs make no sense."""
    with pytest.raises(UsageError, match="2 targets"):
        await factory(targets=(":81", ":82")).make()


async def test_tokenizers() -> None:
    """The one that was named, else the server's where it is here."""
    from lmtool.inference.tiny.path import MODEL_DIR

    info = ModelInfo("m", "", "", tokenizer=TokenizerInfo("m", "0" * 64))
    assert factory().find_tokenizer(info) is None
    assert factory().find_tokenizer(ModelInfo("m", "", "")) is None
    named = factory(tokenizer=str(MODEL_DIR), targets=(":81",))
    await named.make()
    assert named.find_tokenizer(info) is not None


async def test_prompts_set_parameters() -> None:
    """Words behind a prompt say more than the option, whose default is that of chat; each prompt has its own seed."""
    source = await factory(targets=(":81",), prompts=("Hello max_tokens=400 stop=x", "Hi seed=9", "Hi")).make()
    assert isinstance(source, ConnectSource)
    first, second, third = source._prompts
    assert (first.prompt, first.sampling.max_tokens, first.sampling.stop) == ("Hello", 400, ("x",))
    assert (second.prompt, second.sampling.max_tokens, second.sampling.seed) == ("Hi", 256, 9)
    assert first.sampling.seed != third.sampling.seed
    with pytest.raises(UsageError, match="max_tokens is 0"):
        await factory(targets=(":81",), prompts=("Hello max_tokens=0",)).make()


async def test_keys_of_branches(tmp_path: Path) -> None:
    """A key is for requests from here: it goes with branches over HTTP to its server, and a proxy passes none on."""
    place = f"127.0.0.1:{free_port()}"
    warnings: list[str] = []
    made = await factory(warnings.append, proxy=place, to="http://127.0.0.1:1/v1", api_key=KEY, connect=(":2",)).make()
    assert isinstance(made, ProxySource)
    assert made._http is not None
    assert (made._http.target.url, key_in(made._http.target.authorization)) == ("http://127.0.0.1:1/v1", KEY)
    assert made._proxy.target.authorization is None
    await made.close()
    trace = await factory(targets=(str(RECORDING),), connect=("http://127.0.0.1:1/v1",), api_key=KEY).make()
    assert (trace.takes_requests, trace.no_requests) == (False, HTTP_ALONE)
    assert trace._http is not None
    assert (trace._http.target.path, key_in(trace._http.target.authorization)) == ("/v1", KEY)
    await trace.close()


class TestTexts:
    """Texts that servers score."""

    def test_which_servers(self) -> None:
        """One server, or two side by side; a trace scores nothing, and three are too many."""
        with pytest.raises(UsageError, match="--connect names 2 servers"):
            factory(connect=(":1", ":2"))._check_servers()
        with pytest.raises(UsageError, match="a trace is none"):
            factory(text="a.txt", targets=("a.lmtp.jsonl",))._check_servers()
        with pytest.raises(UsageError, match="are three"):
            factory(text="a.txt", targets=(":3",), connect=(":1", ":2"))._check_servers()
        factory(text="a.txt", connect=(":1", ":2"))._check_servers()

    async def test_the_second_server(self) -> None:
        """It scores the same text on a connection of its own."""
        assert factory(text="a.txt", connect=(":1",)).make_second() is None
        second = factory(text="a.txt", content="Hi", connect=(":1", "ws://127.0.0.1:2/")).make_second()
        assert isinstance(second, ConnectSource)
        assert second.title == "connect :2"
        assert [one.whole for one in second._scores] == ["Hi"]
        await second.close()
