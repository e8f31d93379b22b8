"""References to outside data: only what was allowed by name, and never a way out of it."""

from __future__ import annotations

import asyncio
import base64
import os

import pytest

from lmtool.core.errors import UsageError
from lmtool.protocol.evergreen.references import AllowedReferences, allowed_references, public_address
from lmtool.protocol.evergreen.status import Abort, Status

LIMIT = 1000


@pytest.fixture
def root(tmp_path):
    """A folder with a file, beside it a secret, and links of all kinds."""
    folder = tmp_path / "root"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/file").write_bytes(b"data")
    (tmp_path / "secret").write_bytes(b"hidden")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "in").symlink_to("inner/file")
    (folder / "long").write_bytes(b"x" * (LIMIT + 1))
    os.mkfifo(folder / "pipe")
    return folder


async def test_files(root):
    """Files under the folder, by absolute path or below it, also by a link within it."""
    allowed = allowed_references([f"file:{root}"])
    for uri in (
        f"file://{root}/inner/file",
        f"file://localhost{root}/inner/file",
        "file://inner/file",
        f"file:{root}/in",
    ):
        assert await allowed.read(uri, "text/plain", LIMIT) == b"data"


@pytest.mark.parametrize(
    "path", ["missing", "out", "up/secret", "pipe", "inner", "", "inner/file/more", "in%00", "inner/%2e%2e/../file"]
)
async def test_no_way_out(root, path):
    """What is missing, no regular file, or behind a link that leads outside, is refused with one sentence."""
    allowed = allowed_references([f"file:{root}"])
    with pytest.raises(Abort) as refused:
        await allowed.read(f"file://{root}/{path}", "text/plain", LIMIT)
    assert refused.value.status is Status.INVALID_ARGUMENT
    assert "hidden" not in refused.value.sentence


async def test_a_refusal_does_not_tell_what_exists(root):
    """Outside of the folder the sentence is the same for what exists and what does not, and nothing is opened."""
    allowed = allowed_references([f"file:{root}"])
    sentences = set()
    for path in (root.parent / "secret", root.parent / "missing", root / "../secret"):
        with pytest.raises(Abort) as refused:
            allowed.check(f"file://{path}")
        sentences.add(refused.value.sentence)
    assert len(sentences) == 1
    inside = []
    for path in ("missing", "out"):
        with pytest.raises(Abort) as refused:
            await allowed.read(f"file://{path}", "text/plain", LIMIT)
        inside.append(refused.value.sentence.replace(path, "*"))
    assert inside[0] == inside[1]


async def test_a_long_file(root):
    """More than what is left of the limit is refused by the limit's name, without reading all of it."""
    with pytest.raises(Abort, match="max_value_bytes") as refused:
        await allowed_references([f"file:{root}"]).read(f"file://{root}/long", "text/plain", LIMIT)
    assert refused.value.status is Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "https://example.org/a",
        "https://user:word@allowed.example/a",
        "http://allowed.example/a",
        "https://allowed.example:444/a",
        "https://allowed.example:x/a",
        "https://[bad/a",
        "data:,a",
        "ftp://allowed.example/a",
        "",
        "x" * 5000,
    ],
)
def test_what_was_not_allowed(uri, tmp_path):
    """Anything but the named folders and hosts, by scheme, host and port, without credentials."""
    allowed = allowed_references([f"file:{tmp_path}", "https://allowed.example"])
    with pytest.raises(Abort) as refused:
        allowed.check(uri)
    assert refused.value.status is Status.INVALID_ARGUMENT
    assert "word" not in refused.value.sentence


async def test_data():
    """`data:` is inline data in another form."""
    allowed = allowed_references(["data:"])
    text = base64.b64encode(b"\x00jam").decode()
    assert await allowed.read(f"data:text/plain;base64,{text}", "", LIMIT) == b"\x00jam"
    assert await allowed.read("data:,half%20a%20doughnut", "", LIMIT) == b"half a doughnut"
    for broken in ("data:nothing", "data:;base64,*"):
        with pytest.raises(Abort, match="cannot be read"):
            await allowed.read(broken, "", LIMIT)


@pytest.mark.parametrize("value", ["file:", "file:/no/such/folder", "https://", "https://a/b", "ftp://a", "gopher", ""])
def test_options_that_make_no_sense(value):
    """One sentence, exit 2."""
    with pytest.raises(UsageError, match="--allow-ref"):
        allowed_references([value])


def test_no_option():
    """Without one there is nothing that reads."""
    assert allowed_references([]) is None


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "10.0.0.1", "169.254.1.1", "0.0.0.0", "100.64.0.1", "224.0.0.1", "240.0.0.1"),
        *("127.1", "0x7f000001", "2130706433", "255.255.255.255", "192.0.0.1", "198.18.0.1"),
        *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fc00::1", "fec0::1", "ff0e::1"),
        *("64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::a00:1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1"),
        *("2002:7f00:1::", "2002:808:808::", "2001:0:7f00:1::1", "2001:0:808:808::1", "2001:db8::1", "100::1"),
        *("5f00::1", "3fff::1", "4000::1"),
    ],
)
async def test_addresses_that_are_not_public(host):
    """No host of this machine or its network, whatever name it goes by."""
    with pytest.raises(PermissionError):
        await public_address(host, 80)


@pytest.mark.parametrize("host", ["8.8.8.8", "::ffff:8.8.8.8", "2001:4860:4860::8888", "2a00:1450:4001::1"])
async def test_addresses_that_are_public(host):
    """The address itself is what is connected to; its name is not looked up again."""
    assert await public_address(host, 80) == host


class Host:
    """A real server that answers every request with these bytes, and keeps what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.received = b""

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        self.received += await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await writer.drain()
        writer.close()

    def allowed(self):
        """References to it, as if it were a public host."""

        async def find(host, port):
            assert (host, port) == ("data.example", self.port)
            return "127.0.0.1"

        origin = ("http", "data.example", self.port)
        return AllowedReferences(origins=frozenset([origin]), find_address=find)

    async def read(self, path="/a?b=1"):
        return await self.allowed().read(f"http://data.example:{self.port}{path}", "", LIMIT)


async def test_a_host():
    """Its answer, from the address that its name had, asked for without credentials."""
    async with Host(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\njam") as host:
        assert await host.read() == b"jam"
        assert host.received.startswith(b"GET /a?b=1 HTTP/1.1\r\n")
        assert f"host: data.example:{host.port}".encode() in host.received.lower()
        assert b"authorization" not in host.received.lower()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "cannot be read"),
        (b"nothing that is HTTP\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3 * LIMIT, "max_value_bytes"),
    ],
)
async def test_hosts_that_answer_otherwise(answer, sentence):
    """Redirects are not followed, failures are one sentence, and a long answer is not read to its end."""
    async with Host(answer) as host:
        with pytest.raises(Abort, match=sentence):
            await host.read()
        assert host.received.count(b"GET") == 1
