"""WebSocket bytes to messages (RFC 6455, RFC 7692), written by a real implementation."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Close, Frame, Opcode

from lmtool.trace.websocket_stream import CloseFrame, Item, TooLarge, Unreadable, WebSocketStream

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
messages = st.lists(text | st.binary(max_size=70_000), max_size=4)


def frames(message: str | bytes, mask: bool, pieces: int = 1, deflate: PerMessageDeflate | None = None) -> bytes:
    """A message as bytes of the wire, with a ping before each further fragment."""
    data = message.encode() if isinstance(message, str) else message
    size = -(-len(data) // pieces) or 1
    parts = [data[i : i + size] for i in range(0, len(data), size)] or [b""]
    written = b""
    for i, part in enumerate(parts):
        opcode = Opcode.CONT if i else Opcode.TEXT if isinstance(message, str) else Opcode.BINARY
        frame = Frame(opcode, part, i == len(parts) - 1)
        ping = Frame(Opcode.PING, b"x").serialize(mask=mask) if i else b""
        written += ping + frame.serialize(mask=mask, extensions=[deflate] if deflate else [])
    return written


def fed(stream: WebSocketStream, data: bytes, step: int = 10**9) -> list[Item]:
    """What a stream sees of data that comes in pieces."""
    return [seen for i in range(0, len(data), step) for seen in stream.feed(data[i : i + step])]


@given(messages, st.booleans(), st.integers(1, 3), st.integers(1, 5000))
def test_messages_come_out_as_they_were_sent(some: list[str | bytes], mask: bool, pieces: int, step: int) -> None:
    """Masked or not, in fragments with pings between them, cut anywhere."""
    data = b"".join(frames(message, mask, pieces) for message in some)
    assert fed(WebSocketStream(), data, step) == some


@given(messages, st.booleans(), st.integers(1, 3), st.booleans())
def test_compressed_messages_come_out(some: list[str | bytes], mask: bool, pieces: int, takeover: bool) -> None:
    """permessage-deflate, with and without a context that lasts."""
    deflate = PerMessageDeflate(not takeover, not takeover, 15, 15)
    data = b"".join(frames(message, mask, pieces, deflate) for message in some)
    assert fed(WebSocketStream(deflate=True, takeover=takeover), data) == some


def test_close_frames_are_told() -> None:
    """Code and reason; none of both where the frame is empty."""
    for close, code, reason in ((Close(1000, "bye").serialize(), 1000, "bye"), (b"", None, "")):
        data = Frame(Opcode.CLOSE, close).serialize(mask=True)
        assert WebSocketStream().feed(data) == [CloseFrame(code, reason)]


def test_text_that_is_no_utf8_is_told_as_bytes() -> None:
    """Nothing is lost where a peer breaks the protocol."""
    assert WebSocketStream().feed(Frame(Opcode.TEXT, b"\xff").serialize(mask=False)) == [b"\xff"]


@pytest.mark.parametrize("step", [7, 1000, 10**6])
@pytest.mark.parametrize("pieces", [1, 2, 30])
def test_large_messages_are_passed_over(monkeypatch: pytest.MonkeyPatch, step: int, pieces: int) -> None:
    """Of a message above the limit only the size is told; the next one is whole again."""
    monkeypatch.setattr("lmtool.trace.websocket_stream.LARGEST_MESSAGE", 1000)
    data = frames(b"x" * 5000, True, pieces) + frames("next", True)
    stream = WebSocketStream()
    assert fed(stream, data, step) == [TooLarge(5000), "next"]


@pytest.mark.parametrize(
    ("data", "deflate"),
    [
        (b"\x83\x00", False),
        (b"\xc1\x00", False),
        (b"\xa1\x00", False),
        (b"\xc1\x02\xff\xff", True),
    ],
)
def test_what_is_no_websocket_is_told_once(data: bytes, deflate: bool) -> None:
    """Unknown opcodes, reserved bits, data that does not unpack: told, and nothing more is followed."""
    stream = WebSocketStream(deflate=deflate)
    (seen,) = fed(stream, data + frames("later", False))
    assert isinstance(seen, Unreadable)
    assert stream.feed(frames("later", False)) == []


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small frame that would unpack to more than the limit ends the following, not the memory."""
    monkeypatch.setattr("lmtool.trace.websocket_stream.LARGEST_MESSAGE", 10_000)
    deflate = PerMessageDeflate(True, True, 15, 15)
    (seen,) = WebSocketStream(deflate=True).feed(frames(b"0" * 1_000_000, False, 1, deflate))
    assert isinstance(seen, Unreadable)


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes_do_no_harm(data: bytes, deflate: bool) -> None:
    """Whatever is sent, something or nothing is seen, and nothing is raised."""
    fed(WebSocketStream(deflate=deflate), data, 3)


def test_random_bytes_after_a_message_do_not_change_it() -> None:
    """A message that is complete is told at once."""
    assert WebSocketStream().feed(frames("a", True) + os.urandom(1))[0] == "a"
