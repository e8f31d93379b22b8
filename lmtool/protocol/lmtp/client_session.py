"""The client's end of an LMTP conversation without I/O: requests in, frames out; frames in, events out (SPEC.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import (
    AccessDeniedError,
    ConnectError,
    LocalProtocolError,
    RequestError,
    ServerError,
    kind_of,
    rebuilt,
)
from lmtool.core.streams import failure, renamed
from lmtool.core.types import GenerateRequest, TokenOutput
from lmtool.protocol.lmtp import codec, request_payloads
from lmtool.protocol.lmtp.buffers import names_of
from lmtool.protocol.lmtp.client_buffers import unsupported
from lmtool.protocol.lmtp.codec import BrokenFrameError
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
    Tokens,
    UnknownMessage,
    Watched,
    WatchRequest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.core.types import FinishReason, ScoreRequest, StreamId
    from lmtool.protocol.lmtp.messages import ServerMessage


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
    "StreamsAdvanced | ModelInfoAnswer | ModelsAnswer | BufferAnswer | RequestFailed | Progress | System"
    " | FieldsIgnored | Watched"
    " | UnknownMessage | BrokenFrame"
)


class ClientSession:
    """The client's end of one connection.

    `open` and `ask` give a key and the frame to send; `receive` turns each of the server's frames into events. Keys are
    the ids on the wire, counted from 1 and never used twice. A request that is `undecided` must wait until it is known
    what the server speaks (or `assume_plain`), and one with an `ending` is not sent at all.
    """

    def __init__(self, *, extended: bool = False) -> None:
        self._last_key = 0
        self._streams: dict[str, StreamId] = {}
        self._kept_here: dict[str, list[int]] = {}
        """Tokens left and alternatives of streams, where the server may exceed them: one that knows no extensions."""
        self._requests: set[str] = set()
        self._watches: set[str] = set()
        self.extended = extended
        """True if the server is known to speak the extensions."""
        self._trusted = extended
        self.extensions: frozenset[str] | None = None
        """Their names, once the server has announced them (EXT-6)."""
        self.answered = False
        """True if the server has sent anything that can be read."""
        self.plain = False
        """True if the server is known not to speak them: it is LMQL's, or one like it."""

    def undecided(self, request: GenerateRequest | ScoreRequest) -> bool:
        """True if a request uses an extension, and it is not known yet whether the server speaks them.

        Raises `LocalProtocolError` for a request that cannot be written at all.
        """
        if self.extended or self.plain:
            return self.asks_for_extensions and bool(names_of(request))
        return _without_tokens(request) is not None or bool(request_payloads.extensions(request))

    @property
    def asks_for_extensions(self) -> bool:
        """True if it is not known whether the server knows buffers: MODEL_INFO tells it (BUF-8)."""
        return self.extensions is None and not self._trusted and not self.plain

    def check_buffers(self, request: GenerateRequest | ScoreRequest) -> None:
        """Raise `RequestError` for a request that names buffers, which the server does not know."""
        if not self.plain and names_of(request):
            self.require_buffers()

    def require_buffers(self) -> None:
        """Raise `RequestError` where the server does not know buffers, as far as it has told what it knows."""
        if self.plain or (self.extensions is not None and "buffers" not in self.extensions):
            raise unsupported()

    def only_offers(self, request: GenerateRequest | ScoreRequest) -> bool:
        """True if `resumable`, which can be left out, is all that LMQL's server does not know of a request."""
        offers = isinstance(request, GenerateRequest) and request.resumable and _without_tokens(request) is None
        return offers and request_payloads.extensions(request) == ["resumable"]

    def assume_plain(self) -> None:
        """Treat the server as LMQL's: it has not shown in time that it speaks the extensions."""
        self.plain = not self.extended

    def ending(self, request: GenerateRequest | ScoreRequest) -> FinishReason | None:
        """How a stream without tokens ends here, because a plain server would not end it so; None: send it."""
        return _without_tokens(request) if self.plain else None

    def open(self, request: GenerateRequest | ScoreRequest, *, progress: bool = False) -> tuple[str, str]:
        """Begin a stream. Returns its key and the frame to send. Raises `LocalProtocolError`; then nothing is begun.

        `lmtp` and `progress` are sent only where the request uses an extension anyway, or the server is known to speak
        them. LMQL's server fails a request with a field that it does not know, or drops it unseen: there, what it does
        not know is refused by name; `resumable`, which only offers something, is left out, and `deadline`, which is for
        the caller to keep then. So is `client`, unless the server has announced it (EXT-6): it believes this client.
        """
        if isinstance(request, GenerateRequest) and (self.plain or (not self.extended and self.only_offers(request))):
            request = replace(request, resumable=False)
        if request.client and "client" not in (self.extensions or ()):
            request = replace(request, client="")
        if self.plain:
            request = replace(request, deadline=None)
        needed = request_payloads.extensions(request)
        if self.plain:
            _check_plain(request, needed)
        extended = self.extended or bool(needed)
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
        if not self.extended and isinstance(request, GenerateRequest):
            self._kept_here[key] = [request.sampling.max_tokens, request.sampling.top_logprobs]
        return key, frame

    def ask(self, model: str | None, *, progress: bool = False, listing: bool = False) -> tuple[str, str]:
        """Ask MODEL_INFO, or for the list of all that is served. Returns the request's key and the frame to send."""
        new = not self.plain
        return self._ask(ModelInfoRequest("", model, extended=new, progress=new and progress, listing=new and listing))

    def manage(self, load: str | None, unload: str | None, *, progress: bool = False) -> tuple[str, str]:
        """Ask MODELS. Returns the request's key and the frame to send."""
        return self._ask(ModelsRequest("", load, unload, extended=True, progress=progress))

    def change_buffer(self, request: BufferRequest) -> tuple[str, str]:
        """Ask BUFFER. Returns the request's key and the frame to send. Raises `LocalProtocolError`."""
        return self._ask(replace(request, extended=True))

    def watch(self) -> tuple[str, str]:
        """Ask WATCH. Returns the request's key and the frame to send."""
        key, frame = self._ask(WatchRequest("", extended=True))
        self._watches.add(key)
        return key, frame

    def _ask(self, request: ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest) -> tuple[str, str]:
        key = str(self._last_key + 1)
        frame = codec.encode_request(replace(request, stream_id=key))
        self._last_key += 1
        self._requests.add(key)
        return key, frame

    def cancel(self, key: str, model: str | None, *, follow: bool = False) -> str | None:
        """End a stream: late outputs of it are dropped. Returns the frame to send, None where the server needs none.

        follow: its outputs still come, up to its end.
        """
        self._kept_here.pop(key, None)
        if key not in self._streams or self.plain:
            self._streams.pop(key, None)
            return None
        if not follow:
            del self._streams[key]
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
        self.answered = True
        return [event for message in messages if (event := self._event(message)) is not None]

    def _event(self, message: ServerMessage) -> ClientEvent | None:
        match message:
            case Tokens():
                return self._advance(message.outputs)
            case RequestFailed():
                return self._fail(message)
            case ModelInfoAnswer():
                self._learn_from(message.model_info)
                return self._answered(message)
            case ModelsAnswer() | BufferAnswer():
                self._learn(speaks=True)
                return self._answered(message)
            case FieldsIgnored() if "generated" in message.fields:
                return self._refuse_beginning_again(message.stream_id)
            case Watched():
                self._requests.discard(message.stream_id)
                return message if message.stream_id in self._watches else None
            case Progress() | System() | FieldsIgnored():
                self._learn(speaks=True)
                return message if message.stream_id in self._requests or message.stream_id in self._streams else None
            case UnknownMessage():
                return message

    def _refuse_beginning_again(self, key: str) -> ClientEvent | None:
        """End a stream whose server does not know `generated`: it would send again what the client has."""
        problem = RequestError("the server does not know generated: it cannot go on with a stream", "begin it again")
        return self._advance((failure(key, problem),))

    def _answered(self, message: ModelInfoAnswer | ModelsAnswer | BufferAnswer) -> ClientEvent | None:
        answered = message.stream_id in self._requests
        self._requests.discard(message.stream_id)
        return message if answered else None

    def _advance(self, received: tuple[TokenOutput, ...]) -> StreamsAdvanced | None:
        keys, outputs = [], []
        for output in received:
            key = str(output.stream_id)
            if key not in self._streams:
                continue
            kept = None if self.extended or output.token is None else self._kept_here.get(key)
            if kept is not None:
                output = _within(output, kept)  # noqa: PLW2901
            keys.append(key)
            outputs.append(renamed(output, self._streams[key]))
            if output.last:
                del self._streams[key]
                self._kept_here.pop(key, None)
        return StreamsAdvanced(tuple(keys), tuple(outputs)) if keys else None

    def _fail(self, message: RequestFailed) -> ClientEvent | None:
        """A MSG error: of a request, or of a stream, where LMQL's server refuses a GENERATE that way."""
        key = message.stream_id
        if message.error_code is not None:
            self._learn(speaks=True)
        elif message.error.startswith("Unknown command: CANCEL") or key in self._requests:
            self._learn(speaks=False)  # whoever knows the extensions tells the error's code
        if key is None or key in self._requests:
            self._requests.discard(key or "")
            return message
        code = message.error_code or RequestError.code
        return self._advance(
            (
                TokenOutput(
                    key,
                    error=message.error,
                    error_code=code,
                    error_hints=message.hints,
                    retryable=message.retryable,
                    retry_after=message.retry_after,
                ),
            )
        )

    def _learn_from(self, info: Mapping[str, object] | str) -> None:
        self._learn(speaks=not isinstance(info, str) and "lmtp" in info)
        if isinstance(info, Mapping) and isinstance(names := info.get("extensions"), list):
            self.extensions = frozenset(name for name in names if isinstance(name, str))

    def _learn(self, *, speaks: bool) -> None:
        self.extended = self.extended or speaks
        self.plain = not self.extended

    def lost(self, error: LmtoolError) -> list[ClientEvent]:
        """End every stream and request, because the connection is gone."""
        outputs = tuple(failure(key, error) for key in self._streams)
        failed: list[ClientEvent] = [RequestFailed.of(key, error) for key in self._requests]
        self._requests.clear()
        advanced = self._advance(outputs)
        return [advanced, *failed] if advanced else failed


def _without_tokens(request: GenerateRequest | ScoreRequest) -> FinishReason | None:
    """How a stream ends that has no tokens; None for one that may have some.

    LMQL's server sends a token all the same for `max_tokens` 0, and nothing ever for an empty `scored`.
    """
    if isinstance(request, GenerateRequest):
        return "length" if request.sampling.max_tokens == 0 and not request.prefill_only else None
    return None if request.scored else "stop"


def _within(output: TokenOutput, kept: list[int]) -> TokenOutput:
    """The output with no more alternatives than requested, and with the stream's end once no more tokens were.

    LMQL's server runs a batch to the largest `max_tokens` and `top_logprobs` in it. kept: tokens left, alternatives.
    """
    kept[0] -= 1
    best = [entry for i, entry in enumerate(output.top_logprobs or ()) if i < kept[1] or entry[0] == output.token]
    reason = "length" if not kept[0] and output.finish_reason is None else output.finish_reason
    return replace(output, top_logprobs=tuple(best) if output.top_logprobs else None, finish_reason=reason)


def _check_plain(request: GenerateRequest | ScoreRequest, needed: Sequence[str]) -> None:
    """Raise `LocalProtocolError` for what LMQL's server does not know, or drops its connection over."""
    if request.model is None:
        raise LocalProtocolError("the server is LMQL's, or one like it: it needs the name of a model", "name it")
    if needed:
        ids = any(name.endswith("as text") or name == "messages" for name in needed)
        raise LocalProtocolError(
            f"the server speaks LMTP as LMQL does, and does not know: {', '.join(needed)}",
            "send token ids" if ids else "leave that out",
            "or serve the model with lmtool, which knows it",
        )


def error_of(event: RequestFailed) -> LmtoolError:
    """The error of a request; a `RequestError` keeps its kind, another failure is the server's."""
    kind = kind_of(event.error_code)
    kept = issubclass(kind, RequestError | ConnectError | AccessDeniedError)
    kind, again, seconds = kind if kept else ServerError, event.retryable, event.retry_after
    return rebuilt(kind, event.error, event.hints, retryable=again, retry_after=seconds)
