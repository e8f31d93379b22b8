"""Streams of a trace: requests and the outputs that answer them, in every protocol.

The only place that assembles answers into streams; statistics, filters, views and comparison use it. It parses nothing:
LMTP frames are read by `lmtp.frames`, HTTP answers by `providers`.
"""

from __future__ import annotations

import codecs
import json
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import structs

from lmtool.protocol.lmtp import frames
from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChoiceFinished,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    counted_tokens,
)
from lmtool.protocol.providers.answer_reader import AnswerReader, api_of
from lmtool.protocol.providers.body_parts import form_of, leads_data
from lmtool.protocol.providers.unified import ATTEMPTS, MEMBER, attempts_line
from lmtool.trace.codec import reference
from lmtool.trace.events import Close, Done, Drop, Frame, JsonText, Message, Piece, Request, Response, Vocab
from lmtool.trace.exchanges import RequestTable
from lmtool.trace.session_actions import SessionActions
from lmtool.trace.stream_events import OutputEvent, RequestStarted, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import Entry, Key, TokenEntry
    from lmtool.protocol.providers.answer_events import AnswerEvent
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import Alternative, StreamEvent

S = TypeVar("S", bound=Stream)

CONNECTION_ENDED = "the connection ended before the stream did"
ANSWER_ENDED = "the answer ended before the stream did"


class Answers(Generic[S]):
    """Follows the events of one trace; call `follow` with each, in order."""

    def __init__(self, new_stream: Callable[[RequestStarted, int, int], S]) -> None:
        """new_stream: makes the stream of a request, given its index and choice; see `stream_events.stream_of`."""
        self._new_stream = new_stream
        self._streams = 0
        self.vocabulary: dict[int, str | bytes] = {}
        """Text of each token id that the trace has explained so far."""
        self.names: dict[int, str] = {}
        """Names of special tokens, which add no text."""
        self.lmtp: defaultdict[int, RequestTable[S]] = defaultdict(RequestTable)
        """Open LMTP requests, by connection."""
        self._http: defaultdict[int, deque[HttpRequest[S]]] = defaultdict(deque)
        self._http_count: defaultdict[int, int] = defaultdict(int)
        self._sessions: defaultdict[int, SessionActions[S]] = defaultdict(lambda: SessionActions(self._start))
        """Evergreen sessions, by connection."""
        self._chats: defaultdict[int, dict[str, list[HttpRequest[S]]]] = defaultdict(dict)
        """Unanswered requests on WebSockets of the unified API, by connection and id.

        A second request with the id of a running stream is refused; it stays here until the refusal.
        """

    def follow(self, event: Event) -> Sequence[StreamEvent]:
        """Stream events that an event causes, in order."""
        match event:
            case Frame():
                if message := message_of(event):
                    return self._chat_frame(event, message)
                return self._client_frame(event) if event.direction == ">" else self._server_frame(event)
            case Piece():
                return self._piece(event)
            case Message():
                return self._sessions[event.connection].follow(event)
            case Request():
                return [self._http_request(event)]
            case Done():
                return self._done(event)
            case Close() | Drop():
                return self._end_connection(event)
            case Response():
                self._response(event)
            case Vocab():
                self.vocabulary.update(event.tokens)
                self.names.update(event.names)
        return ()

    def text_of(self, output: OutputEvent) -> str | None:
        """Text of one token, for display: bytes inside a character as `⟨f0 9f⟩`; None if unknown."""
        text = output.text if output.token is None else self.vocabulary.get(output.token, output.text)
        return f"⟨{text.hex(' ')}⟩" if isinstance(text, bytes) else text

    def text_of_id(self, token: int) -> str | None:
        """Text of a token id, for example of a prompt; None if unknown."""
        text = self.vocabulary.get(token)
        return f"⟨{text.hex(' ')}⟩" if isinstance(text, bytes) else text

    def _start(self, started: RequestStarted, choice: int = 0) -> S:
        generates = bool(started.stream_kind)
        stream = self._new_stream(started, self._streams if generates else -1, choice)
        self._streams += generates
        if not choice:
            started.stream = stream
        return stream

    # LMTP.

    def _client_frame(self, event: Frame) -> Sequence[StreamEvent]:
        command, value, _ = event.parse()
        if command not in ("GENERATE", "SCORE", "MODEL_INFO", "MODELS", "BUFFER", "WATCH"):
            return ()
        payload = _object(value)
        key = frames.stream_key(payload.get("stream_id"))
        label = f"{event.connection}/{frames.stream_name(key)}"
        started = RequestStarted(event.time, event.connection, label, command, payload)
        self.lmtp[event.connection].add(command, key, self._start(started))
        return [started]

    def start_unannounced(self, time: float, connection: int, key: Key) -> None:
        """Start a stream for tokens without a recorded request: a recording may start in the middle."""
        started = RequestStarted(
            time, connection, f"{connection}/{frames.stream_name(key)}", "GENERATE", {}, has_request=False
        )
        self.lmtp[connection].holders[key] = self._start(started)

    def _server_frame(self, event: Frame) -> list[StreamEvent]:
        command, entries = event.answer()
        if command == "TOKEN":
            return self._tokens(event, entries)
        return list(self._messages(event, entries)) if command == "MSG" else []

    def _tokens(self, event: Frame, entries: list[Entry]) -> list[StreamEvent]:
        read = frames.token_entries(entries)
        outputs: list[StreamEvent] = []
        for raw, entry, stream in zip(entries, read, self.owners(event.time, event.connection, read), strict=True):
            token = entry.token if entry.has_token else None
            logprob = stream.logprob_of_next(entry.logprob) if entry.counts else None
            facts = (token, entry.own_text, logprob, entry.finish_reason, entry.error)
            if entry.last and isinstance(counted := raw.get("usage"), dict):
                stream.usage = TokenUsage.flat(counted)
            no_logprob = entry.counts and logprob is None and entry.logprob is not None
            top = None if no_logprob else raw
            outputs.append(OutputEvent(event.time, stream, *facts, is_thought=entry.is_thought, top=top))
        return outputs

    def owners(self, time: float, connection: int, entries: Iterable[TokenEntry]) -> list[S]:
        """Stream of each entry of a TOKEN, in order; streams whose last entry is among them are ended."""
        table, streams = self.lmtp[connection], list[S]()
        for entry in entries:
            if entry.stream_id not in table.holders:
                self.start_unannounced(time, connection, entry.stream_id)
            stream = table.holders[entry.stream_id]
            streams.append(stream)
            if entry.seam is not None:
                stream.seams += (entry.seam,)
            if entry.last:
                self.end(connection, stream, time, entry)
        return streams

    def end(self, connection: int, stream: S, time: float, entry: TokenEntry) -> None:
        """End the stream of an entry."""
        stream.end(time, entry.finish_reason, entry.error)
        stream.attempts = entry.attempts
        self.lmtp[connection].end(entry.stream_id)

    def _messages(self, event: Frame, entries: list[Entry]) -> Iterator[StreamEvent]:
        """Outputs of MSG entries: answers to requests other than streams, and failed requests."""
        table = self.lmtp[event.connection]
        for entry in entries:
            self._learn_names(entry.get("model_info"))
            stream = None if entry.get("stream_id") is None else table.owner("MSG", entry)
            if stream is None or not frames.ends("MSG", entry):
                continue
            key = frames.stream_key(entry["stream_id"])
            error = None if entry.get("error") is None else str(entry["error"])
            stream.end(event.time, None, error)
            if table.holders.get(key) is stream:
                table.end(key)
            if error is not None:
                yield OutputEvent(event.time, stream, error=error)

    def _learn_names(self, info: object) -> None:
        """Name the ids that begin and end texts, unless a vocabulary names them."""
        members = info if isinstance(info, dict) else {}
        ends, bos = members.get("eos_token_ids"), members.get("bos_token_id")
        named = {bos: "<|bos|>", **dict.fromkeys(ends if isinstance(ends, list) else (), "<|eos|>")}
        self.names = {token: name for token, name in named.items() if type(token) is int} | self.names

    # HTTP.

    def _http_request(self, event: Request) -> RequestStarted:
        number = self._http_count[event.connection] = self._http_count[event.connection] + 1
        label, kind = f"{event.connection}/{number}", f"{event.method} {event.path}"
        payload = _object(event.body.value if isinstance(event.body, JsonText) else None)
        api = api_of(event.method, event.path)
        started = RequestStarted(event.time, event.connection, label, kind, payload, api)
        stream = self._start(started)
        self._http[event.connection].append(HttpRequest(started, {} if api is None else {0: stream}))
        return started

    def _response(self, event: Response) -> None:
        if waiting := self._http.get(event.connection):
            request = waiting[0]
            request.http_error = f"HTTP {event.status} {event.reason}".strip() if event.status >= 400 else ""
            after = event.headers.get("retry-after", "")
            wait = f", retry after {after}{' s' if after.isdigit() else ''}" if after and request.http_error else ""
            for stream in request.choices.values():
                stream.status = f"{request.http_error}{wait}"
                stream.form = form_of(event.headers.get("content-type", ""))
                stream.attempts = event.headers.get(ATTEMPTS, "")

    def _piece(self, event: Piece) -> Sequence[StreamEvent]:
        waiting = self._http.get(event.connection)
        if not waiting or not waiting[0].choices:
            return ()
        request = waiting[0]
        if request.reader is None:
            request.reader = _reader(request.choices[0], event)
        return self._outputs(event.time, request, _read(request.reader, event))

    def _done(self, event: Done) -> Sequence[StreamEvent]:
        waiting = self._http.get(event.connection)
        if not waiting:
            return ()
        request = waiting.popleft()
        outputs = list(self._outputs(event.time, request, request.reader.end() if request.reader else ()))
        return outputs + _end_all(request.choices.values(), event.time, request.http_error, ANSWER_ENDED)

    def _outputs(self, time: float, request: HttpRequest[S], events: Iterable[AnswerEvent]) -> list[StreamEvent]:
        outputs: list[StreamEvent] = []
        if request.reader is not None and request.choices:
            reader, first = request.reader, request.choices[0]
            first.member, first.seams = reader.ids.get(MEMBER, ""), reader.seams
            first.attempts = reader.attempts or first.attempts
        for event in events:
            if isinstance(event, AnswerFailed):
                outputs += _end_all(request.choices.values(), time, event.message)
            elif isinstance(event, TextDelta | ToolCallDelta | ChoiceFinished):
                stream = self._choice(request, event.choice)
                if isinstance(event, ChoiceFinished):
                    stream.end(time, event.reason, None)
                    _finish(outputs, OutputEvent(time, stream, finish_reason=event.reason))
                elif isinstance(event, ToolCallDelta):
                    request.add_call(time, stream, event, outputs)
                else:
                    outputs += request.text_outputs(time, stream, event)
            elif request.choices:  # usage, of all choices together
                usage = request.choices[0].usage
                request.choices[0].usage = event if usage is None else usage.updated(event)
        return outputs

    def _choice(self, request: HttpRequest[S], number: int) -> S:
        if number not in request.choices:
            stream, first = self._start(request.started, number), request.choices[0]
            request.choices[number] = stream
            stream.form, stream.attempts, stream.member = first.form, first.attempts, first.member
        return request.choices[number]

    # The unified API's WebSocket.

    def _chat_frame(self, event: Frame, message: Mapping[str, object]) -> list[StreamEvent]:
        is_request, chat_id, chats = event.direction == ">", str(message["id"]), self._chats[event.connection]
        waiting = chats.setdefault(chat_id, [])
        request = None if is_request or not waiting else waiting[-1 if "error" in message else 0]
        steps: list[StreamEvent] = []
        if request is None:  # a request, or the answer to one that the trace lacks
            label, payload = f"{event.connection}/{chat_id}", message if is_request else {}
            started = RequestStarted(
                event.time, event.connection, label, "chatStream", payload, "unified", has_request=is_request
            )
            request = HttpRequest(started, {0: self._start(started)}, AnswerReader("unified", "whole"))
            waiting.append(request)
            steps += [started] if is_request else []
        if not is_request:
            steps += self._chat_answer(event.time, request, message)
            if all(stream.ended is not None for stream in request.choices.values()):
                waiting.remove(request)
                if not waiting:
                    del chats[chat_id]
        return steps

    def _chat_answer(
        self, time: float, request: HttpRequest[S], message: Mapping[str, object]
    ) -> Sequence[StreamEvent]:
        for stream in request.choices.values():
            stream.attempts = stream.attempts or attempts_of(message)
        if (error := error_of(message)) is not None:
            return _end_all(request.choices.values(), time, error)
        assert request.reader is not None
        return self._outputs(time, request, request.reader.read(message.get("chunk")))

    # Endings.

    def _end_connection(self, event: Close | Drop) -> list[StreamEvent]:
        table = self.lmtp.pop(event.connection, None)
        outputs = [] if table is None else _end_all(table.open_requests(), event.time, "", CONNECTION_ENDED)
        for request in self._http.pop(event.connection, ()):
            outputs += _end_all(request.choices.values(), event.time, request.http_error, CONNECTION_ENDED)
        self._http_count.pop(event.connection, None)
        for request in chain.from_iterable(self._chats.pop(event.connection, {}).values()):
            outputs += _end_all(request.choices.values(), event.time, "", CONNECTION_ENDED)
        if (session := self._sessions.pop(event.connection, None)) is not None:
            reason = event.reason if isinstance(event, Close) else ""
            outputs += _end_all(session.open_streams(), event.time, reason, CONNECTION_ENDED)
        return outputs


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) and reference(value) is None else {}


def _reader(stream: Stream, piece: Piece) -> AnswerReader:
    assert stream.api is not None
    return AnswerReader(stream.api, "events" if piece.kind == "sse" else stream.form)


def _read(reader: AnswerReader, piece: Piece) -> list[AnswerEvent]:
    """Answer events of a piece. Its parsed JSON is used directly if the piece is exactly one part of the answer."""
    content = piece.content
    if not isinstance(content, JsonText) or not reader.between_parts:
        return reader.feed(piece.wire())
    is_part = leads_data(content.lead) if piece.kind == "sse" else not content.lead
    return reader.read(content.value) if is_part else reader.feed(piece.wire())


def _finish(outputs: list[StreamEvent], ending: OutputEvent) -> None:
    """Add an ending, merged into the stream's last output if both came together."""
    last = outputs[-1] if outputs else None
    if isinstance(last, OutputEvent) and last.stream is ending.stream and not last.last:
        outputs[-1] = structs.replace(last, finish_reason=ending.finish_reason)
    else:
        outputs.append(ending)


def _end_all(streams: Iterable[Stream], time: float, error: str, cut: str = "") -> list[StreamEvent]:
    """End the streams that are open: with an error, or otherwise as cut."""
    outputs: list[StreamEvent] = []
    for stream in streams:
        if stream.ended is None and stream.index >= 0:
            stream.end(time, None, error or cut, cut=not error)
            outputs.append(OutputEvent(time, stream, error=stream.error))
    return outputs


def alternatives_in(events: Sequence[Event], stream: Stream) -> list[tuple[Alternative, ...]]:
    """Alternatives of each token that the last of these events brings, best first.

    stream: any stream with tokens in that event. The earlier events may hold the start of a part that it completes.
    Over HTTP, pieces of text without known tokens are left out.
    """
    last = events[-1]
    if isinstance(last, Frame):
        command, entries = last.answer()
        read = zip(entries, frames.token_entries(entries), strict=True) if command == "TOKEN" else ()
        return [frames.alternatives(raw) for raw, entry in read if entry.counts]
    pieces = [event for event in events if isinstance(event, Piece)]
    if not pieces or stream.api is None:
        return []
    reader = _reader(stream, pieces[-1])
    answer: list[AnswerEvent] = []
    for piece in pieces:
        answer = _read(reader, piece)
    answer = reader.end() if isinstance(last, Done) else answer
    return [token.alternatives for event in answer if isinstance(event, TextDelta) for token in event.tokens]


class StreamText:
    """Text of one stream, decoded incrementally: a character appears once all its bytes have arrived."""

    def __init__(self, vocabulary: Mapping[int, str | bytes]) -> None:
        """vocabulary: text of token ids; may grow."""
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, output: OutputEvent) -> str:
        """Text that an output completes; `⟨#7⟩` for an id that the trace does not explain."""
        piece = output.text
        if piece is None and output.token is not None:
            piece = self._vocabulary.get(output.token, f"⟨#{output.token}⟩")
        if isinstance(piece, str) and not self._decoder.getstate()[0]:
            return piece
        data = piece.encode(errors="replace") if isinstance(piece, str) else piece or b""
        return self._decoder.decode(data, final=output.last)


@dataclass(slots=True)
class HttpRequest(Generic[S]):
    """An HTTP request without a complete answer."""

    started: RequestStarted
    choices: dict[int, S] = field(default_factory=dict)
    """Streams by choice; empty for a request that generates nothing."""
    reader: AnswerReader | None = None
    http_error: str = ""
    """Status of an error response."""
    choices_with_tokens: set[int] = field(default_factory=set)
    """Choices whose tokens came with logprobs: their further text repeats these tokens."""
    tools: dict[tuple[int, int], str] = field(default_factory=dict)
    """Names of called tools, by choice and number of the call."""
    calls_with_tokens: set[tuple[int, int]] = field(default_factory=set)
    """Calls whose tokens came with logprobs."""
    without_text: bool = False
    """True if the latest tokens came without text: they belong to the tool call whose delta follows."""

    def text_outputs(self, time: float, stream: S, event: TextDelta) -> list[OutputEvent]:
        """Outputs of a text delta: its tokens, or the text as one piece."""
        is_piece = not event.tokens
        self.without_text = not event.text
        return [
            OutputEvent(
                time,
                stream,
                text=token.piece,
                logprob=token.logprob,
                is_piece=is_piece,
                is_thought=event.kind == "reasoning",
                top=None if is_piece else token,
            )
            for token in counted_tokens(event, self.choices_with_tokens)
        ]

    def add_call(self, time: float, stream: S, event: ToolCallDelta, outputs: list[StreamEvent]) -> None:
        """Add a tool call delta to the outputs of its chunk: the tool's name, then its arguments.

        Tokens without text in the same chunk belong to this call; then its text is theirs and is not added again.
        """
        key = (event.choice, event.index)
        tool = self.tools[key] = event.name or self.tools.get(key, "")
        for place, output in enumerate(outputs):
            if isinstance(output, OutputEvent) and output.stream is stream and self._is_of_call(output):
                outputs[place] = structs.replace(output, call=event.index, tool=tool)
                self.calls_with_tokens.add(key)
        if key in self.calls_with_tokens:
            return
        texts = ((event.name or "", True), (event.arguments, False))
        outputs += [
            OutputEvent(time, stream, text=text, is_piece=True, call=event.index, tool=tool, is_tool_name=is_name)
            for text, is_name in texts
            if text
        ]

    def _is_of_call(self, output: OutputEvent) -> bool:
        """True if an output of the current chunk is a token of the tool call in that chunk."""
        return self.without_text and bool(output.top) and not output.is_thought and output.call is None


def message_of(event: Frame) -> Mapping[str, object]:
    """JSON object with an id in a frame of the unified API; empty for any other frame, such as one of LMTP."""
    text = event.content
    if not isinstance(text, str | bytes) or text[:1] not in ("{", b"{"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("id"), str) else {}


def error_of(message: Mapping[str, object]) -> str | None:
    """Reason a stream failed; None for any other message."""
    error = message.get("error")
    return str(error.get("message") or "the stream failed") if isinstance(error, dict) else None


def attempts_of(message: Mapping[str, object]) -> str:
    """Attempts of a gateway from a stream's last message, formatted like `x-lmtool-attempts`; otherwise empty."""
    content = message.get("error" if "error" in message else "chunk")
    return attempts_line(content.get("attempts")) if isinstance(content, dict) else ""
