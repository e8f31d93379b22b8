"""The server's end of an LMTP conversation without I/O: frames in, events out; outputs in, frames out (SPEC.md).

No method raises: nothing that a client sends can end the process that reads it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import OverloadedError, ServerError
from lmtool.core.streams import failure
from lmtool.protocol.lmtp import answer_payloads, codec, model_info
from lmtool.protocol.lmtp.codec import RefusedFrameError
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.messages import (
    BufferAnswer,
    BufferRequest,
    Cancel,
    FieldsIgnored,
    Generate,
    ModelInfoAnswer,
    ModelInfoRequest,
    ModelsAnswer,
    ModelsRequest,
    Progress,
    RequestFailed,
    Score,
    System,
    WatchRequest,
)
from lmtool.protocol.lmtp.request_fields import LIMITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.types import LoadProgress, ModelInfo, StreamId, TokenOutput
    from lmtool.protocol.lmtp.messages import ClientMessage, SystemMessage

_WATCHED = "MSG of WATCH"
"""Stands for the command of an entry that answers WATCH."""

ServerEvent: TypeAlias = (
    "Generate | Score | ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest | Cancel | RefusedFrameError"
)
"""What a client's frame requests of the server. A refused frame has been answered already."""


def parse(frame: str | bytes, limits: LimitsByModel | None = None) -> ClientMessage | RefusedFrameError:
    """The message of a client's frame, or why it is refused. Needs no session, so any process may run it.

    limits: of the models' prompts, where they are known.
    """
    try:
        return codec.decode_request(frame, limits)
    except RefusedFrameError as error:
        return error


class ServerSession:
    """The server's end of one connection.

    Call `receive` with each frame, or `handle_message` with what `parse` returned for it elsewhere, and carry out the
    event: submit a `Generate` or `Score`, cancel the stream of a `Cancel`, answer a `ModelInfoRequest`, a
    `ModelsRequest` or a `BufferRequest` with `answer`, `answer_list`, `answer_buffer` or `refuse`, a `WatchRequest`
    with `refuse`, or with `tell` again and again. Pass the model's outputs to `outputs`, and send what `next_frame`
    returns.
    """

    def __init__(self, config: ServerConfig | None = None, *, trusted: bool = False) -> None:
        """trusted: whether the client is believed for whom it asks (GEN-21)."""
        self._trusted = trusted
        config = config or ServerConfig()
        self._max_streams = config.max_streams
        self._limits = {
            "frame_bytes": config.max_frame_bytes,
            "streams": config.max_streams,
            "buffers": config.max_buffers,
            "buffer_bytes": config.max_buffer_bytes,
            **LIMITS,
        }
        self._streams: set[StreamId] = set()
        self._outbox = Outbox(config.max_sent_frame_bytes)
        self.extended = False
        """True if a request of the client had `lmtp`, so that it knows the extensions (EXT-2)."""

    @property
    def streams(self) -> frozenset[StreamId]:
        """Ids (JSON text) of the streams that have not ended."""
        return frozenset(self._streams)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the answers that have not been sent."""
        return self._outbox.waiting_bytes

    def receive(self, frame: str | bytes) -> ServerEvent:
        """The event of a client's frame."""
        return self.handle_message(parse(frame))

    def handle_message(self, message: ClientMessage | RefusedFrameError) -> ServerEvent:
        """The event of a client's message, as `parse` returns it."""
        self.extended = self.extended or message.extended
        if isinstance(message, RefusedFrameError):
            self._answer_refused(message)
        if isinstance(message, Generate | Score):
            return self._open(message if self._trusted else _without_client(message))
        if isinstance(message, ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest):
            self._report_ignored(message.stream_id, message.ignored)
        return message

    def _open(self, message: Generate | Score) -> ServerEvent:
        stream_id = str(message.request.stream_id)
        command = "GENERATE" if isinstance(message, Generate) else "SCORE"
        if stream_id in self._streams:
            hint = "wait for its finish_reason or pick another id"
            running = RefusedFrameError(
                f"stream_id {stream_id} is still running", hint, command=command, stream_id=stream_id
            )
            self.refuse(stream_id, running)
            return running
        if len(self._streams) >= self._max_streams:
            overload = OverloadedError(f"{len(self._streams)} streams run on this connection, the most it may have")
            self._put_output(failure(stream_id, overload))
            return RefusedFrameError(overload.message, command=command, stream_id=stream_id)
        self._streams.add(stream_id)
        self._report_ignored(stream_id, message.ignored)
        return message

    def _answer_refused(self, error: RefusedFrameError) -> None:
        """Send the reason why a frame was refused where the client looks for it (ERR-1, ERR-2)."""
        starts_stream = error.command in ("GENERATE", "SCORE")
        if starts_stream and error.stream_id is not None and error.stream_id not in self._streams:
            self._put_output(replace(failure(error.stream_id, error), error_code=error.error_code))
        else:
            self.refuse(error.stream_id, error)

    def _report_ignored(self, stream_id: str, fields: tuple[str, ...]) -> None:
        if fields and self.extended:
            self._outbox.put("MSG", answer_payloads.write_message(FieldsIgnored(stream_id, fields)))

    def outputs(self, outputs: Sequence[TokenOutput]) -> list[StreamId]:
        """Queue outputs of the model; return the ids of the streams that ended with them.

        Outputs of streams that are not running are dropped.
        """
        ended = []
        for output in outputs:
            if output.stream_id in self._streams and self._put_output(output):
                self._streams.discard(output.stream_id)
                ended.append(output.stream_id)
        return ended

    def _put_output(self, output: TokenOutput) -> bool:
        """Queue one output; return whether it is the last of its stream."""
        try:
            entry = answer_payloads.write_output(output, extended=self.extended)
        except ValueError as error:
            output = failure(output.stream_id, ServerError(f"the model failed at token {output.token}: {error}"))
            entry = answer_payloads.write_output(output, extended=self.extended)
        self._outbox.put("TOKEN", entry)
        return output.last

    def fail_streams(self, error: LmtoolError) -> list[StreamId]:
        """End every running stream with an error; return their ids."""
        return self.outputs([failure(stream, error) for stream in self._streams])

    def answer(self, request: ModelInfoRequest, info: ModelInfo, prompt_bytes: int | None = None) -> None:
        """Answer a MODEL_INFO. prompt_bytes: most bytes of a text as prompt, where that is known."""
        limits = {**self._limits, "prompt_bytes": prompt_bytes}
        answer = ModelInfoAnswer(
            request.stream_id, model_info.to_wire(info, limits, extended=self.extended, trusted=self._trusted)
        )
        self._outbox.put("MSG", answer_payloads.write_message(answer))

    def answer_list(self, request: ModelInfoRequest | ModelsRequest, models: Sequence[ModelEntry]) -> None:
        """Answer a MODELS, or a MODEL_INFO that asks for a list."""
        answer = ModelsAnswer(request.stream_id, [model_info.entry_to_wire(entry) for entry in models])
        self._outbox.put("MSG", answer_payloads.write_message(answer))

    def answer_buffer(self, request: BufferRequest, length: int) -> None:
        """Answer a BUFFER. length: ids that the buffer has now."""
        answer = BufferAnswer(request.stream_id, request.name, length)
        self._outbox.put("MSG", answer_payloads.write_message(answer))

    def tell(self, stream_id: str, time: float, events: Sequence[bytes], lost: int) -> None:
        """Answer a WATCH with what went over other connections. events: each as JSON."""
        self._outbox.put(_WATCHED, answer_payloads.write_watched(stream_id, time, events, lost))

    def refuse(self, stream_id: str | None, error: LmtoolError) -> None:
        """Answer a request, or a frame without a usable id (None), with an error that ends no stream."""
        failed = RequestFailed.of(stream_id, error) if self.extended else RequestFailed(stream_id, error.sentence)
        self._outbox.put("MSG", answer_payloads.write_message(failed))

    def report_progress(self, stream_id: str, progress: LoadProgress) -> None:
        """Send the progress of the load that a request waits for."""
        self._outbox.put("MSG", answer_payloads.write_message(Progress(stream_id, progress)))

    def say(self, stream_id: str, system: SystemMessage) -> None:
        """Send what holds a stream up."""
        self._outbox.put("MSG", answer_payloads.write_message(System(stream_id, system)))

    def next_frame(self) -> str | None:
        """The next frame to send, None when there is none."""
        return self._outbox.next_frame()

    @property
    def confidential(self) -> bool:
        """True if nobody else may be shown the frame that `next_frame` has returned: it answers WATCH (WAT-2)."""
        return self._outbox.last_command == _WATCHED


class Outbox:
    """Entries of TOKEN and MSG that wait to be sent, first in, first out.

    Adjacent TOKEN entries leave as one frame, so a step is one frame for a reader that keeps up, and several steps
    are one frame for a reader that does not. A frame has at most `max_frame_bytes`, unless a single entry has more.
    """

    __slots__ = ("_entries", "_max_frame_bytes", "last_command", "waiting_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self._entries: deque[tuple[str, bytes]] = deque()
        self._max_frame_bytes = max_frame_bytes
        self.last_command = ""
        """Of the entries in the last frame."""
        self.waiting_bytes = 0
        """Bytes of the entries that have not been sent."""

    def put(self, command: str, entry: bytes) -> None:
        """Append one entry, which is JSON."""
        self._entries.append((command, entry))
        self.waiting_bytes += len(entry)

    def next_frame(self) -> str | None:
        """Remove and return the next frame; None when there is nothing to send."""
        if not self._entries:
            return None
        command, entry = self._entries.popleft()
        entries, size, waited = [entry], len(entry), len(entry)
        while command == "TOKEN" and self._entries and self._entries[0][0] == "TOKEN":
            size += len(self._entries[0][1]) + 1
            if size > self._max_frame_bytes:
                break
            entry = self._entries.popleft()[1]
            waited += len(entry)
            entries.append(entry)
        self.waiting_bytes -= waited
        self.last_command = command
        if command == _WATCHED:
            command = "MSG"
        return f"{command} [{b','.join(entries).decode()}]"


def _without_client(message: Generate | Score) -> Generate | Score:
    """A request of somebody who is not believed for whom it is: as if the server did not know the field."""
    if not message.request.client:
        return message
    ignored = (*message.ignored, "client")
    if isinstance(message, Generate):
        return replace(message, request=replace(message.request, client=""), ignored=ignored)
    return replace(message, request=replace(message.request, client=""), ignored=ignored)
