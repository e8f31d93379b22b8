"""TLS: every wire of a port speaks it, every client checks who answers, and what cannot be used is told before."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import lmtool as lmtool_package
from lmtool.core.errors import FileError, UsageError
from lmtool.serving.access_config import TlsConfig
from lmtool.serving.config import ListenConfig
from tests.cli.test_keys import CLIENTS
from tests.conftest import STORIES
from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Run, ServerProcess, StartServer


class Files:
    """A certificate for this machine, its key, and the authority that vouches for it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.chain, self.key, self.both, self.authority = (folder / name for name in ("chain", "key", "both", "ca"))
        self.chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.both.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        self.authority.write_bytes(authority.cert_pem.bytes())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Made once."""
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(start_server: StartServer, files: Files) -> Iterator[ServerProcess]:
    """A server process that speaks TLS on its port and on that of gRPC, and asks for a key."""
    words = ("--ssl-certfile", str(files.chain), "--ssl-keyfile", str(files.key), "--grpc-port", "0")
    with start_server(str(STORIES), *words, LMTOOL_API_KEY=KEY) as process:
        process.expect("ready in")
        assert process.url.startswith("wss://127.0.0.1:")
        yield process


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client(secure: ServerProcess, files: Files, lmtool: Run, client: str) -> None:
    """A certificate that nobody vouches for is refused, by name; one that is trusted is spoken to."""
    http = secure.url.replace("wss", "https").rstrip("/")
    words = [word.replace("URL", secure.url).replace("HTTP", http) for word in CLIENTS[client]]
    refused = lmtool(*words, LMTOOL_API_KEY=KEY)
    assert refused.returncode == 3, refused.stderr
    assert "is not trusted" in refused.stderr
    assert "unable to get local issuer certificate" in refused.stderr
    done = lmtool(*words, LMTOOL_API_KEY=KEY, SSL_CERT_FILE=str(files.authority))
    assert done.returncode == 0, done.stdout + done.stderr


async def test_evergreen(secure: ServerProcess, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over WebSocket and over gRPC."""
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)  # the narrower one would be heeded
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
    (line,) = [line for line in secure.lines if " gRPC " in line]
    for url in (secure.url, f"grpcs://{line.split()[-1]}"):
        async with lmtool_package.session(url, api_key=KEY) as session:
            text = "".join([piece async for piece in session.generate("Once upon a time", max_tokens=5)])
        assert text.strip() == ", there was a little", url


def test_who_speaks_no_tls_is_told(secure: ServerProcess, served: str, lmtool: Run) -> None:
    """A client with TLS at a port without, and the other way round; the server goes on."""
    done = lmtool("info", "-e", served.replace("ws://", "wss://"))
    assert done.returncode == 3
    assert f"does not speak TLS\n  write {served.rstrip('/')} or http://" in done.stderr
    done = lmtool("info", "-e", secure.url.replace("wss://", "ws://"))
    assert done.returncode == 3
    assert f"if it is a server with TLS:  -e {secure.url}" in done.stderr
    assert secure.process.poll() is None


def test_pools_and_balancers(start_server: StartServer, files: Files, lmtool: Run) -> None:
    """They speak it at their door, and to the servers behind."""
    trusting = {"SSL_CERT_FILE": str(files.authority)}
    tls = ("--ssl-certfile", str(files.both))
    with start_server(*tls) as server:
        server.expect("ready in")
        with start_server(server.url, *tls, command="balance", **trusting) as balancer:
            balancer.expect("ready in")
            with start_server("-e", balancer.url, *tls, command="gateway", **trusting) as gateway:
                gateway.expect("ready in")
                said = lmtool("chat", "-e", gateway.url, "What is 2 + 2?", **trusting)
                assert said.stdout.strip() == "2 + 2 = 4", said.stderr
                assert lmtool("pools", "-e", gateway.url, **trusting).returncode == 0
                refused = lmtool("pools", "-e", gateway.url)
                assert (refused.returncode, "is not trusted" in refused.stderr) == (3, True), refused.stderr


class TestFiles:
    """What is no certificate with its key."""

    def test_good(self, files: Files) -> None:
        """Two files, or one with both; nothing older than TLS 1.2."""
        for one in (TlsConfig(str(files.chain), str(files.key)), TlsConfig(str(files.both))):
            certificate = one.load(ListenConfig())
            assert certificate is not None
            assert certificate.context.minimum_version >= ssl.TLSVersion.TLSv1_2
            assert "PRIVATE" not in repr(certificate)
        assert TlsConfig().load(ListenConfig()) is None

    def test_contradictions(self, files: Files) -> None:
        """A key alone; a server without a port."""
        for config, listen, said in (
            (TlsConfig(None, "key"), ListenConfig(), "--ssl-keyfile needs its certificate"),
            (TlsConfig(str(files.both)), None, "--ssl-certfile and --stdio contradict each other"),
            (TlsConfig(str(files.both)), ListenConfig(unix="s"), "--ssl-certfile and --unix contradict each other"),
        ):
            with pytest.raises(UsageError, match=said):
                config.load(listen)

    def test_unusable(self, files: Files, tmp_path: Path) -> None:
        """Each fault is told apart, with the file's name."""
        other = Files(tmp_path)
        encrypted = tmp_path / "encrypted"
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        how = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        encrypted.write_bytes(key.private_bytes(*how))
        chain, gone = str(files.chain), str(tmp_path / "gone")
        for config, said in (
            (TlsConfig(gone), f"cannot read {gone}: no such file or directory"),
            (TlsConfig(chain, gone), f"cannot read {gone}: no such file or directory"),
            (TlsConfig(str(tmp_path)), f"cannot read {tmp_path}: is a directory"),
            (TlsConfig(chain), f"{chain} has no certificate with its private key"),
            (TlsConfig(chain, str(other.key)), f"{other.key} does not match the certificate {chain}"),
            (TlsConfig(chain, str(encrypted)), f"{chain} and {encrypted} cannot be used: the private key is encrypted"),
            (TlsConfig(str(STORIES / "config.json"), str(files.key)), "are not a certificate and its key"),
        ):
            with pytest.raises(FileError) as refused:
                config.load(ListenConfig())
            assert said in refused.value.message
            assert refused.value.hints
