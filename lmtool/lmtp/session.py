"""Both ends of an LMTP conversation without I/O: frames in, events out; outputs in, frames out (SPEC.md).

No method but those that say so raises: what a peer sends can never end the process that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from lmtool.errors import OverloadedError, RequestError
from lmtool.lmtp import answer_payloads, codec, model_info, request_payloads
from lmtool.lmtp.codec import BrokenFrameError, RefusedFrameError
from lmtool.lmtp.messages import (
    Cancel,
    FieldsIgnored,
    Generate,
    ModelInfoAnswer,
    ModelInfoRequest,
    Progress,
    RequestFailed,
    Score,
    Tokens,
    UnknownMessage,
)
from lmtool.lmtp.outbox import Outbox
from lmtool.types import GenerateRequest, TokenOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.errors import LmtoolError
    from lmtool.lmtp.messages import ClientMessage, ServerMessage
    from lmtool.prompt_limits import LimitsByModel
    from lmtool.types import LoadProgress, ModelInfo, ScoreRequest, StreamId

ServerEvent: TypeAlias = "Generate | Score | ModelInfoRequest | Cancel | RefusedFrameError"
"""What a client's frame asks the server to do. A refused frame has been answered already."""


def read(frame: str | bytes, limits: LimitsByModel | None = None) -> ClientMessage | RefusedFrameError:
    """The message of a client's frame, or why it cannot be obeyed. Knows no session: any process may do it.

    limits: of the models' prompts, where they are known.
    """
    try:
        return codec.decode_request(frame, limits)
    except RefusedFrameError as error:
        return error


class ServerSession:
    """The server's end of one connection.

    Call `receive` with each frame, or `take` with what `read` made of it elsewhere, and do what the event says: submit
    a `Generate` or `Score`, cancel the stream of a `Cancel`, answer a `ModelInfoRequest` with `answer` or `refuse`.
    Give what the model produces to `outputs`, and send what `next_frame` returns.
    """

    def __init__(self, *, max_streams: int = 1024, max_frame_bytes: int = 2**20) -> None:
        self._max_streams = max_streams
        self._streams: set[StreamId] = set()
        self._outbox = Outbox(max_frame_bytes)
        self.extended = False
        """Whether the client has shown, by `lmtp` in a request, that it knows the extensions (EXT-2)."""

    @property
    def streams(self) -> frozenset[StreamId]:
        """Ids (JSON text) of the streams that have not ended."""
        return frozenset(self._streams)

    @property
    def waiting_bytes(self) -> int:
        """How much is to be sent."""
        return self._outbox.waiting_bytes

    def receive(self, frame: str | bytes) -> ServerEvent:
        """What a client's frame asks for."""
        return self.take(read(frame))

    def take(self, message: ClientMessage | RefusedFrameError) -> ServerEvent:
        """What a client's frame asks for, as `read` has read it."""
        if isinstance(message, RefusedFrameError):
            self.extended = self.extended or message.extended
            self._answer_refused(message)
            return message
        self.extended = self.extended or message.extended
        if isinstance(message, Generate | Score):
            return self._open(message)
        if isinstance(message, ModelInfoRequest):
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
            self._put_output(TokenOutput(stream_id, error=_sentence(overload), error_code=overload.code))
            return RefusedFrameError(overload.message, command=command, stream_id=stream_id)
        self._streams.add(stream_id)
        self._report_ignored(stream_id, message.ignored)
        return message

    def _answer_refused(self, error: RefusedFrameError) -> None:
        """Tell a client why its frame was refused, where it looks for it (ERR-1, ERR-2)."""
        starts_stream = error.command in ("GENERATE", "SCORE")
        if starts_stream and error.stream_id is not None and error.stream_id not in self._streams:
            self._put_output(TokenOutput(error.stream_id, error=_sentence(error), error_code=error.error_code))
        else:
            self.refuse(error.stream_id, error)

    def _report_ignored(self, stream_id: str, fields: tuple[str, ...]) -> None:
        if fields and self.extended:
            self._outbox.put("MSG", answer_payloads.write_message(FieldsIgnored(stream_id, fields)))

    def outputs(self, outputs: Sequence[TokenOutput]) -> list[StreamId]:
        """Take what the model produced; return the ids of the streams that ended with it.

        Outputs of streams that are not running are dropped.
        """
        ended = []
        for output in outputs:
            if output.stream_id in self._streams and self._put_output(output):
                self._streams.discard(output.stream_id)
                ended.append(output.stream_id)
        return ended

    def _put_output(self, output: TokenOutput) -> bool:
        """Queue one output; whether it is the last one of its stream."""
        try:
            entry = answer_payloads.write_output(output, extended=self.extended)
        except ValueError as error:
            sentence = f"the model failed at token {output.token}: {error}"
            output = TokenOutput(output.stream_id, error=sentence, error_code="server")
            entry = answer_payloads.write_output(output, extended=self.extended)
        self._outbox.put("TOKEN", entry)
        return output.last

    def fail_streams(self, error: LmtoolError) -> list[StreamId]:
        """End every running stream with an error; return their ids."""
        sentence = _sentence(error)
        return self.outputs([TokenOutput(stream, error=sentence, error_code=error.code) for stream in self._streams])

    def answer(self, request: ModelInfoRequest, info: ModelInfo) -> None:
        """Answer a MODEL_INFO."""
        answer = ModelInfoAnswer(request.stream_id, model_info.to_wire(info))
        self._outbox.put("MSG", answer_payloads.write_message(answer))

    def refuse(self, stream_id: str | None, error: LmtoolError) -> None:
        """Answer a request, or a frame that belongs to none (None), with an error that ends no stream."""
        failed = RequestFailed(stream_id, _sentence(error), error.code if self.extended else None)
        self._outbox.put("MSG", answer_payloads.write_message(failed))

    def report_progress(self, stream_id: str, progress: LoadProgress) -> None:
        """Tell how the load proceeds that a request waits for."""
        self._outbox.put("MSG", answer_payloads.write_message(Progress(stream_id, progress)))

    def next_frame(self) -> str | None:
        """The next frame to send, None when there is none."""
        return self._outbox.next_frame()


@dataclass(frozen=True, slots=True)
class StreamsAdvanced:
    """Outputs of streams of this client. `keys` has the wire's id of each; the outputs bear their submitters' ids."""

    keys: tuple[str, ...]
    outputs: tuple[TokenOutput, ...]


@dataclass(frozen=True, slots=True)
class BrokenFrame:
    """The server sent what cannot be read: nothing it sends can be trusted to belong to anything any more."""

    reason: str


ClientEvent: TypeAlias = (
    "StreamsAdvanced | ModelInfoAnswer | RequestFailed | Progress | FieldsIgnored | UnknownMessage | BrokenFrame"
)


class ClientSession:
    """The client's end of one connection.

    `open` and `ask` give a key and the frame to send; `receive` turns each of the server's frames into events. Keys are
    the ids on the wire, counted from 1 and never used twice.
    """

    def __init__(self) -> None:
        self._last_key = 0
        self._streams: dict[str, StreamId] = {}
        self._requests: set[str] = set()
        self.extended = False
        """Whether the server is known to speak the extensions."""
        self.plain = False
        """Whether the server is known not to speak them."""

    def open(self, request: GenerateRequest | ScoreRequest, *, progress: bool = False) -> tuple[str, str]:
        """Begin a stream. Returns its key and the frame to send. Raises `LocalProtocolError`; then nothing is begun.

        `lmtp` and `progress` are sent only where the request uses an extension anyway, or the server is known to speak
        them: LMQL's server fails a request with a field that it does not know.
        """
        extended = self.extended or request_payloads.needs_extensions(request)
        key = str(self._last_key + 1)
        progress = progress and extended
        message: Generate | Score
        if isinstance(request, GenerateRequest):
            message = Generate(replace(request, stream_id=key), extended, progress)
        else:
            message = Score(replace(request, stream_id=key), extended, progress)
        frame = codec.encode_request(message)
        self._last_key += 1
        self._streams[key] = request.stream_id
        return key, frame

    def ask(self, model: str | None, *, progress: bool = False) -> tuple[str, str]:
        """Ask MODEL_INFO. Returns the request's key and the frame to send."""
        self._last_key += 1
        key = str(self._last_key)
        self._requests.add(key)
        return key, codec.encode_request(ModelInfoRequest(key, model, extended=True, progress=progress))

    def cancel(self, key: str, model: str | None) -> str | None:
        """End a stream: late outputs of it are dropped. Returns the frame to send, None where the server needs none."""
        if self._streams.pop(key, None) is None or self.plain:
            return None
        return codec.encode_request(Cancel(key, model))

    def forget(self, key: str) -> None:
        """Drop a request whose answer nobody waits for any more."""
        self._requests.discard(key)

    def receive(self, frame: str | bytes) -> list[ClientEvent]:
        """What a server's frame brings for streams and requests that have not ended."""
        try:
            messages = codec.decode_answer(frame)
        except BrokenFrameError as error:
            return [BrokenFrame(str(error))]
        return [event for message in messages if (event := self._event(message)) is not None]

    def _event(self, message: ServerMessage) -> ClientEvent | None:
        match message:
            case Tokens():
                return self._advance(message.outputs)
            case RequestFailed():
                return self._fail(message)
            case ModelInfoAnswer():
                self._learn(message.model_info)
                answered = message.stream_id in self._requests
                self._requests.discard(message.stream_id)
                return message if answered else None
            case Progress() | FieldsIgnored():
                return message if message.stream_id in self._requests or message.stream_id in self._streams else None
            case UnknownMessage():
                return message

    def _advance(self, received: tuple[TokenOutput, ...]) -> StreamsAdvanced | None:
        keys, outputs = [], []
        for output in received:
            key = str(output.stream_id)
            if key not in self._streams:
                continue
            submitted_as = self._streams[key]
            keys.append(key)
            outputs.append(_renamed(output, submitted_as))
            if output.last:
                del self._streams[key]
        return StreamsAdvanced(tuple(keys), tuple(outputs)) if keys else None

    def _fail(self, message: RequestFailed) -> ClientEvent | None:
        """A MSG error: of a request, or of a stream, where LMQL's server refuses a GENERATE that way."""
        if message.error.startswith("Unknown command: CANCEL"):
            self.plain = True
        key = message.stream_id
        if key is None or key in self._requests:
            self._requests.discard(key or "")
            return message
        code = message.error_code or RequestError.code
        return self._advance((TokenOutput(key, error=message.error, error_code=code),))

    def _learn(self, told: Mapping[str, object] | str) -> None:
        speaks = not isinstance(told, str) and "lmtp" in told
        self.extended = self.extended or speaks
        self.plain = not speaks

    def lost(self, error: LmtoolError) -> list[ClientEvent]:
        """End every stream and request, because the connection is gone."""
        sentence = _sentence(error)
        outputs = tuple(TokenOutput(key, error=sentence, error_code=error.code) for key in self._streams)
        failed: list[ClientEvent] = [RequestFailed(key, sentence, error.code) for key in self._requests]
        self._requests.clear()
        advanced = self._advance(outputs)
        return [advanced, *failed] if advanced else failed


def _renamed(output: TokenOutput, stream_id: StreamId) -> TokenOutput:
    """The same output of another stream; in half the time of `dataclasses.replace`, for every token."""
    return TokenOutput(
        stream_id,
        output.token,
        output.logprob,
        output.top_logprobs,
        output.text,
        output.finish_reason,
        output.usage,
        output.error,
        output.error_code,
        output.warnings,
        output.stopped_by,
    )


def _sentence(error: LmtoolError) -> str:
    return "; ".join([error.message, *error.hints])
