"""`chat --record`: frames are recorded while they are shown to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.endpoint import parse
from lmtool.settings.terminal import Output
from lmtool.terminal.chat.peer import open_peer
from lmtool.trace.events import Close, Frame, Open, Vocab
from lmtool.trace.reader import TraceReader
from tests.conftest import STORIES


async def test_recorded_connection(served: str, tmp_path: Path) -> None:
    """Each frame is shown and recorded; the connection has a beginning and an end."""
    shown: list[tuple[str, str]] = []
    path = tmp_path / "a.lmtp.jsonl"

    def show(direction: str, frame: str) -> None:
        shown.append((direction, frame))

    async with open_peer(parse(served), Output.of(quiet=True), None, record=str(path), on_frame=show):
        pass
    reader = TraceReader(path)
    opened, *frames, closed, _ = reader
    assert reader.header.transport == {"kind": "websocket", "path": "/"}
    assert isinstance(opened, Open)
    assert [direction for direction, _ in shown] == [">", "<"]
    assert [frame.wire() for frame in frames if isinstance(frame, Frame)] == [frame for _, frame in shown]
    assert isinstance(closed, Close)


@pytest.mark.parametrize("own", [False, True])
async def test_texts_of_alternatives(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """What a server sends as ids only has its text in the trace: by the user's tokenizer, or the model's found here."""
    if not own:
        monkeypatch.setattr("lmtool.inference.tiny.path.MODEL_DIR", STORIES)
    path = tmp_path / "a.lmtp.jsonl"
    asked = GenerateRequest(1, "Once upon a time", SamplingParams(max_tokens=3, top_logprobs=4), text=True)
    tokenizer = str(STORIES) if own else None
    async with open_peer(parse(served), Output.of(quiet=True), None, record=str(path), tokenizer=tokenizer) as peer:
        outputs = [output async for output in stream(peer.model, asked)]
    named = {token for output in outputs for token, _ in output.top_logprobs or ()}
    vocabulary = [event for event in TraceReader(path) if isinstance(event, Vocab)]
    texts = {token: text for event in vocabulary for token, text in event.tokens.items()}
    assert len(named) > 3
    assert named <= texts.keys()
    assert "".join(str(texts[output.token]) for output in outputs if output.token is not None) == "".join(
        output.text or "" for output in outputs
    )
