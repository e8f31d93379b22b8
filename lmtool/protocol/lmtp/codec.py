"""Frames to messages and back, in both directions: a command, one space, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.errors import LocalProtocolError, RequestError
from lmtool.protocol.lmtp import answer_payloads, json_text, request_payloads
from lmtool.protocol.lmtp.config import MAX_FRAME_BYTES
from lmtool.protocol.lmtp.json_text import JsonTextError
from lmtool.protocol.lmtp.messages import Tokens, UnknownMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.protocol.lmtp.messages import ClientMessage, ServerMessage

_SHOWN_CHARACTERS = 64


class RefusedFrameError(RequestError):
    """A client's frame that is refused, with all that is known about its request."""

    def __init__(
        self,
        message: str,
        *hints: str,
        command: str = "?",
        stream_id: str | None = None,
        extended: bool = False,
        error_code: str = RequestError.code,
    ) -> None:
        super().__init__(message, *hints)
        self.command = command
        """Safe to show; `?` where the frame has none."""
        self.stream_id = stream_id
        """The id's JSON text; None where the frame names no usable one."""
        self.extended = extended
        """True if the frame has `lmtp`, so that its client knows the extensions."""
        self.error_code = error_code
        """`LmtoolError.code` of what is wrong with it."""


class BrokenFrameError(ValueError):
    """A server's frame that cannot be read at all; the message says why."""


def decode_request(frame: str | bytes, limits: LimitsByModel | None = None) -> ClientMessage:
    """The message of a client's frame. Raises `RefusedFrameError`, also for a prompt beyond the limits."""
    if isinstance(frame, bytes):
        raise RefusedFrameError("the frame is binary; expected text: a command, one space, JSON")
    command, space, payload = frame.partition(" ")
    shown = ascii(command[:_SHOWN_CHARACTERS])[1:-1]
    if not space:
        raise RefusedFrameError(f"the frame {shown!r} has no space; expected a command, one space, JSON")
    try:
        members = json_text.load_members(payload)
    except JsonTextError as error:
        raise RefusedFrameError(f"the payload of {shown} is not a JSON object: {error}", command=shown) from None
    return _message(command, shown, members, limits or {})


def _message(command: str, shown: str, members: Mapping[str, bytes], limits: LimitsByModel) -> ClientMessage:
    stream_id = None
    try:
        stream_id = request_payloads.stream_id(members)
        return request_payloads.read(command, shown, stream_id, members, limits)
    except RequestError as error:
        extended = members.get("lmtp", b"null") != b"null"
        raise RefusedFrameError(
            error.message,
            *error.hints,
            command=shown,
            stream_id=stream_id,
            extended=extended,
            error_code=error.code,
        ) from None


def encode_request(message: ClientMessage) -> str:
    """The frame of a client's message; fields that have their default value are left out.

    Raises `LocalProtocolError` for a number that is not finite, text that is not Unicode, and a frame that no server
    need read (TRA-4): the server would close the connection, and end all that runs on it.
    """
    command, payload = request_payloads.write(message)
    if len(payload) + len(command) + 1 > MAX_FRAME_BYTES:
        raise LocalProtocolError(
            f"the request has {len(payload)} bytes; a server reads at most {MAX_FRAME_BYTES}", "send a shorter one"
        )
    return f"{command} {payload.decode()}"


def decode_answer(frame: str | bytes) -> list[ServerMessage]:
    """The messages of a server's frame.

    Tolerant: a list or a single object; an unknown command gives `UnknownMessage`, unknown fields are ignored, a
    malformed TOKEN entry becomes an error of its stream. Raises `BrokenFrameError` for a frame that cannot be read.
    """
    if isinstance(frame, bytes):
        raise BrokenFrameError("the frame is binary; expected text")
    command, _, payload = frame.partition(" ")
    try:
        if command == "TOKEN":
            return [Tokens(answer_payloads.read_tokens(payload))]
        if command == "MSG":
            return answer_payloads.read_messages(payload)
    except JsonTextError as error:
        raise BrokenFrameError(f"the payload of {command} {error}") from None
    return [UnknownMessage(command)]
