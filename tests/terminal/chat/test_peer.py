"""A model at an endpoint; what talks to whole servers is tested with `answer` and `chat`."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from lmtool.core.errors import ConnectError, UsageError
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.protocol.lmtp.endpoint import Endpoint, parse
from lmtool.settings.terminal import Output
from lmtool.terminal.chat.peer import open_peer, token_text_of

STORIES = Path(__file__).parents[2] / "data/stories260K"
OUT = Output(color=False, note_color=False, terminal=False)
INFO: dict[str, Any] = {"model": "m", "constructor": "c", "model_type": "x", "vocab_size": 512, "lmtp": 1}


@asynccontextmanager
async def server(*answers: Callable[[int], str | None]) -> AsyncIterator[Endpoint]:
    """Run a server that answers each MODEL_INFO with these frames; None closes the connection."""

    async def handle(connection: ServerConnection) -> None:
        async for frame in connection:
            stream_id = json.loads(str(frame).partition(" ")[2])["stream_id"]
            for answer in answers:
                text = answer(stream_id)
                if text is None:
                    await connection.close()
                else:
                    await connection.send(text)

    async with serve(handle, "127.0.0.1", 0, compression=None) as running:
        yield parse(f"ws://127.0.0.1:{next(iter(running.sockets)).getsockname()[1]}/")


def told(**info: Any) -> Callable[[int], str]:
    """Answer with this MODEL_INFO."""
    return lambda stream_id: "MSG " + json.dumps([{"stream_id": stream_id, "model_info": {**INFO, **info}}])


async def test_server_that_speaks_text() -> None:
    """A server with a tokenizer is used as it is."""
    async with server(told(tokenizer={"name": "t", "sha256": "0"})) as endpoint, open_peer(endpoint, OUT, None) as peer:
        assert (peer.info.model, peer.tokenizer) == ("m", None)
        assert await token_text_of(peer) is None


async def test_server_of_ids_needs_a_tokenizer() -> None:
    """A server that takes ids only is refused with the option that helps, and used with it."""
    async with server(told()) as endpoint:
        with pytest.raises(UsageError, match="token ids only") as caught:
            async with open_peer(endpoint, OUT, None):
                pass
        assert "--tokenizer" in caught.value.hints[0]
        async with open_peer(endpoint, OUT, None, tokenizer=str(STORIES)) as peer:
            spell = await token_text_of(peer)
            assert spell is not None
            assert (spell(383), spell(243), spell(99999)) == (" there", "<0xF0>", "#99999")
            assert peer.info.tokenizer is not None
            assert peer.info.tokenizer.name == "stories260K"


async def test_wrong_tokenizer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Another tokenizer than the server's, or one with too many ids, is warned of: silence would be nonsense."""
    async with (
        server(told(tokenizer={"name": "other", "sha256": "0"})) as endpoint,
        open_peer(endpoint, OUT, None, tokenizer=str(STORIES)),
    ):
        assert "is not the tokenizer of the server's model (other)" in capsys.readouterr().err
    async with server(told(vocab_size=100)) as endpoint, open_peer(endpoint, OUT, None, tokenizer=str(STORIES)):
        assert "has 512 ids, the server's model only 100" in capsys.readouterr().err
    async with server(told(vocab_size=513)) as endpoint, open_peer(endpoint, OUT, None, tokenizer=str(STORIES)):
        assert capsys.readouterr().err == ""  # models have room to spare


async def test_load_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """While the model loads, stderr says how far it is."""

    def progress(stream_id: int) -> str:
        load = {"model": "m", "phase": "loading", "done_bytes": 5_000_000, "total_bytes": 10_000_000}
        return "MSG " + json.dumps([{"stream_id": stream_id, "progress": load}])

    async with (
        server(progress, told(tokenizer={"name": "t", "sha256": "0"})) as endpoint,
        open_peer(endpoint, OUT, None),
    ):
        pass
    assert "loading m" in capfd.readouterr().err


async def test_connection_lost_before_the_answer() -> None:
    """A server that hangs up on MODEL_INFO without a name may be LMQL's: the hint says what it wants."""
    async with server(lambda _: None) as endpoint:
        with pytest.raises(ConnectError) as caught:
            async with open_peer(endpoint, OUT, None):
                pass
        assert "LMQL" in " ".join(caught.value.hints)


async def test_texts_of_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternatives are shown as texts when the server's very tokenizer lies in the hub's cache, found by its hash."""
    from huggingface_hub import constants

    name, sha = "stories", load_tokenizer(str(STORIES)).info.sha256
    snapshot = tmp_path / "models--stories/snapshots/abc"
    shutil.copytree(STORIES, snapshot)
    (tmp_path / "models--stories/refs").mkdir()
    (tmp_path / "models--stories/refs/main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for told_sha, known in ((sha, True), ("0", False)):
        async with (
            server(told(tokenizer={"name": name, "sha256": told_sha})) as endpoint,
            open_peer(endpoint, OUT, None) as peer,
        ):
            spell = await asyncio.wait_for(token_text_of(peer), 30)
            assert (spell is not None) is known
