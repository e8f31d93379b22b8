"""The client over real servers: sessions, conversations, actions of both sides, and the reasons of ends."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import lmtool
from lmtool.core.errors import AccessDeniedError, ConnectError, UsageError
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.evergreen.actions import ActionCall, Registry
from lmtool.protocol.evergreen.client import Session
from lmtool.protocol.evergreen.grpc_server import GrpcServer
from lmtool.protocol.evergreen.menu import menu
from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.harness import grpc_serving
from tests.protocol.lmtp.harness import listening


@lmtool.action("COPY", ["node"], ["copy"])
async def copy(call: ActionCall) -> None:
    """Give the same tree of leaves, each as it comes."""
    output = call.outputs["copy"]
    async for leaf in call.inputs["node"]:
        child = output.child()
        async for piece in leaf:
            await child.write(piece, metadata=leaf.metadata)
        child.close()


@lmtool.action("ASK_BACK", [], ["answer"])
async def ask_back(call: ActionCall) -> None:
    """Ask the client for its name."""
    name = await call.control.invoke("NAME", {"greeting": "who?"}, ["name"])
    await call.outputs["answer"].put(await name["name"].value())


@lmtool.action("FAIL", [], ["never"])
async def fail(call: ActionCall) -> None:
    """Fail, with a secret."""
    raise RuntimeError("the secret of the house")


@lmtool.action("SLEEP", [], ["never"], seconds=0.05)
async def sleep(call: ActionCall) -> None:
    """Never end."""
    await asyncio.Event().wait()


@lmtool.action("NAME", ["greeting"], ["name"])
async def name(call: ActionCall) -> None:
    """Give a name: an action of a client."""
    await call.outputs["name"].put(f"{await call.inputs['greeting'].text()} Ada")


@asynccontextmanager
async def served(tiny: Any, wire: str, *, key: str | None = None, **plugs: Any) -> AsyncIterator[str]:
    """The embedded model and these actions on a real server; its address for `lmtool.session`."""
    registry = menu(tiny, tiny, (copy, ask_back, fail, sleep))
    server = EvergreenServer(Plugs(registry, **plugs))
    policy = AccessPolicy(key) if key else None
    if wire == "grpc":
        async with grpc_serving(server, policy) as address:
            yield f"grpc://{address}"
    else:
        async with listening(server, policy) as port:
            yield f"http://127.0.0.1:{port}"


both_wires = pytest.mark.parametrize("wire", ["websocket", "grpc"])


async def refusal(url: str, script: Callable[[Session], Awaitable[object]], **options: Any) -> Abort:
    """How a session ends that does this."""
    with pytest.raises(Abort) as caught:
        await spoken(url, script, options)
    return caught.value


async def spoken(url, script, options):
    async with lmtool.session(url, **options) as session:
        await script(session)


@both_wires
async def test_an_answer_as_it_comes(tiny, wire):
    """`generate` yields pieces of text; options have OpenAI's names."""
    async with served(tiny, wire) as url, lmtool.session(url) as session:
        pieces = [piece async for piece in session.generate("Once upon a", max_tokens=6)]
        whole = await (await session.call("GENERATE", {"prompt": "Once upon a"}, ["response"], max_tokens=6))[
            "response"
        ].text()
    assert "".join(pieces) == whole
    assert whole.startswith(" time")


async def test_leaving_an_answer_cancels_it(tiny):
    """Who stops reading has the model stopped; the session goes on."""
    async with served(tiny, "websocket") as url, lmtool.session(url) as session:
        pieces = session.generate("Once", max_tokens=480, ignore_eos=True)
        await anext(pieces)
        await pieces.aclose()
        assert [piece async for piece in session.generate("Once", max_tokens=1)]
    assert tiny.model._inner.info_now.running == 0


@both_wires
async def test_conversations_send_what_is_new(tiny, wire):
    """Earlier turns are children of the next prompt, the model's answers among them; no text is sent twice."""
    async with served(tiny, wire) as url, lmtool.session(url) as session:
        conversation = session.conversation(system="Be brief.", max_tokens=20)
        answers, used, sent = [], [], []
        for line in ("What is the capital of France?", "And what is the capital of Spain?"):
            before = session.connection.session.graph.size
            nodes = conversation.ask(line)
            answers.append(await nodes["response"].text())
            sent.append(session.connection.session.graph.size - before)
            used.append(json.loads(await nodes["usage"].value()))
    turns = tiny.requests[-1].prompt.messages
    assert [(turn.role, turn.content) for turn in turns] == [
        ("system", "Be brief."),
        ("user", "What is the capital of France?"),
        ("assistant", answers[0]),
        ("user", "And what is the capital of Spain?"),
    ]
    assert used[1]["prompt_tokens"] > used[0]["prompt_tokens"]


@both_wires
async def test_a_page_as_a_tree(tiny, wire):
    """A text, an image and a video of 1,000 frames, sent out of order, come back from an action byte for byte."""
    rng = random.Random(5)
    leaves = {
        "text": (ChunkMetadata("text/html", original_file_name="page.html"), "A page, née Seite.".encode()),
        "image": (ChunkMetadata("image/png"), rng.randbytes(70_000)),
        **{f"frame{n}": (ChunkMetadata("image/jpeg"), rng.randbytes(rng.randrange(400))) for n in range(1000)},
    }
    async with served(tiny, wire) as url, lmtool.session(url) as session:
        copied = (await session.call("COPY", {"node": session.node("page")}, ["copy"]))["copy"]
        reading = asyncio.create_task(copied.leaves())
        session.output("page").add("text", "image", "video")
        session.connection.close_node("page")
        for name in sorted(leaves, key=lambda _: rng.random()):
            metadata, data = leaves[name]
            middle = len(data) // 2
            session.connection.write(name, data[:middle], metadata)
            session.connection.write(name, data[middle:], final=True)
        session.output("video").add(*(f"frame{n}" for n in range(1000)))
        session.connection.close_node("video")
        assert await reading == [(meta, data) for meta, data in leaves.values() if data]


@both_wires
async def test_the_reason_of_an_end_is_not_lost(tiny, wire):
    """A server that aborts while the client is writing much is heard."""

    async def script(session):
        await session.call("FLY", {"with": "wings"}, ["up"])
        for _ in range(200):
            await session.leaf(b"x" * 50_000)
            await asyncio.sleep(0)
        await session.node("up").completed()

    async with served(tiny, wire) as url:
        refused = await refusal(url, script)
    assert refused.status is Status.UNIMPLEMENTED
    assert "'FLY'" in refused.sentence


@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [
        ("FAIL", Status.INTERNAL, "the action FAIL failed here (RuntimeError)"),
        ("SLEEP", Status.DEADLINE_EXCEEDED, "SLEEP took more than 0.05 s"),
    ],
)
async def test_handlers_that_fail(tiny, name, status, sentence, caplog):
    """One that raises, or exceeds its time, aborts its own session with a sentence, and no other."""

    async def script(session):
        await (await session.call(name, {}, ["never"]))["never"].completed()

    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: caplog.records.append(context))
    async with served(tiny, "websocket") as url, lmtool.session(url) as other:
        refused = await refusal(url, script)
        assert [piece async for piece in other.generate("Once", max_tokens=1)]
    assert (refused.status, refused.message) == (status, sentence)


@both_wires
async def test_actions_of_the_client(tiny, wire):
    """A handler may ask for what the client offers, where the server was told so."""
    async with served(tiny, wire, peer_actions=True) as url, lmtool.session(url, actions=[name]) as session:
        answer = (await session.call("ASK_BACK", {}, ["answer"]))["answer"]
        assert await answer.text() == "who? Ada"


async def test_no_actions_of_the_client_by_default(tiny):
    """The server asks for none; one that the client does not offer ends the session."""

    async def script(session):
        await (await session.call("ASK_BACK", {}, ["answer"]))["answer"].completed()

    async with served(tiny, "websocket") as url:
        refused = await refusal(url, script, actions=[name])
        assert (refused.status, "--peer-actions" in refused.sentence) == (Status.FAILED_PRECONDITION, True)
    async with served(tiny, "websocket", peer_actions=True) as url:
        assert (await refusal(url, script)).status is Status.UNIMPLEMENTED


@both_wires
async def test_keys(tiny, wire):
    """The key of every client; a wrong one is refused, and the error does not show it."""
    async with served(tiny, wire, key="right") as url:
        async with lmtool.session(url, api_key="right") as session:
            assert [piece async for piece in session.generate("Once", max_tokens=1)]
        with pytest.raises((AccessDeniedError, Abort)) as refused:
            await spoken(url, lambda session: session.node("never").completed(), {"api_key": "wrong-key"})
        assert "wrong-key" not in refused.value.sentence


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("http://127.0.0.1:9", ConnectError, "no Evergreen server"),
        ("grpc://127.0.0.1:9", ConnectError, "no gRPC server at 127.0.0.1:9 (Connect call failed"),
        ("grpcs://127.0.0.1:9", ConnectError, "lmtool serve --grpc-port"),
        ("stdio:lmtool serve", UsageError, "listens"),
        ("ftp://x", UsageError, "ftp"),
    ],
)
async def test_no_server(url, error, words):
    """One sentence with what to do, at once."""
    with pytest.raises(error) as refused:
        async with asyncio.timeout(5):
            await spoken(url, lambda session: session.node("never").completed(), {})
    assert words in refused.value.sentence


async def test_what_speaks_no_grpc(tiny):
    """An HTTP port, and one of gRPC that is asked for TLS, are told apart from no server."""
    async with served(tiny, "websocket") as url:
        with pytest.raises(ConnectError, match="does not speak gRPC without TLS"):
            await spoken(url.replace("http", "grpc"), lambda session: session.node("never").completed(), {})
    async with served(tiny, "grpc") as url:
        with pytest.raises(ConnectError, match="does not speak gRPC with TLS"):
            await spoken(url.replace("grpc", "grpcs"), lambda session: session.node("never").completed(), {})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls(tmp_path):
    """`grpcs://` reaches a server whose certificate the file of gRPC's own variable vouches for; else it does not."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    names = ("-addext", "subjectAltName=DNS:localhost")
    await asyncio.to_thread(subprocess.run, ["openssl", *words.split(), *names], check=True, capture_output=True)
    wire = GrpcServer(EvergreenServer(Plugs(Registry([copy]))), AccessPolicy())
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = wire._server.add_secure_port("localhost:0", credentials)
    await wire._server.start()
    try:
        command = [sys.executable, "-m", "lmtool", "evergreen", "actions", "--grpc", f"grpcs://localhost:{port}"]
        listed, refused = [
            await asyncio.to_thread(
                subprocess.run, command, env={**os.environ, **more}, capture_output=True, text=True, timeout=60
            )
            for more in ({"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate)}, {})
        ]
    finally:
        await wire.stop()
    assert "UNIMPLEMENTED" in listed.stderr or "LIST_ACTIONS" in listed.stderr  # it was asked, and offers COPY alone
    assert "trusted certificate" in refused.stderr
