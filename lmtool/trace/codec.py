"""The trace file format (FORMAT.md): header, lines to events and back, and large values kept once as blobs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import msgspec

from lmtool.trace.events import (
    STYLES,
    Blob,
    Close,
    Content,
    Done,
    Drop,
    End,
    Event,
    Frame,
    JsonText,
    Message,
    Open,
    Other,
    Piece,
    Remark,
    Request,
    Response,
    Stat,
    Turn,
    Vocab,
    style_named,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lmtool.trace.events import Style

VERSION = 1
"""Version of the format; readers refuse any other."""

Times: TypeAlias = Literal["measured", "numbered"]


class HeaderError(ValueError):
    """The first line is not a valid header; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a trace (FORMAT.md, "Header"). Every field is optional."""

    created: str | None = None
    """UTC, such as `2026-11-20T22:00:00Z`."""
    by: str | None = None
    """Program that wrote the file."""
    at: str | None = None
    """Where the recorder sat: `proxy`, `server` or `client`."""
    title: str | None = None
    transport: Mapping[str, object] = field(default_factory=dict)
    """`kind` (`websocket`, `http`, `stdio`), `path`, `max_frame` in bytes."""
    model: Mapping[str, object] = field(default_factory=dict)
    """`name`, `vocab_size`, `eos`, `tokenizer`."""
    run: Mapping[str, object] = field(default_factory=dict)
    """`device`, `dtype`, `seed`."""
    json: Style = "py"
    """Style of parsed content that does not name its own."""
    times: Times = "measured"
    """`numbered`: times are event numbers / 1000 and have no meaning."""
    redacted: tuple[str, ...] = ()
    """Parts that were removed: `headers`, `prompt`, `text`."""
    verify: Mapping[str, object] = field(default_factory=dict)
    """Comparison settings: `level`, `tol_logprob`, ..."""
    covers: tuple[str, ...] = ()
    """Ids of the specification's rules that this trace demonstrates."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Unknown members, kept unchanged."""


_KNOWN = {f.name for f in fields(Header)} - {"extra"}
_EMPTY = Header()


def to_json(header: Header) -> dict[str, object]:
    """Header as a JSON object. Empty fields are left out, except for the style."""
    value: dict[str, object] = {"lmtp_trace": VERSION}
    for f in fields(Header):
        if f.name == "json" or (f.name != "extra" and getattr(header, f.name) != getattr(_EMPTY, f.name)):
            value[f.name] = getattr(header, f.name)
    return {**value, **header.extra}


def from_json(value: object) -> Header:
    """Header from the JSON of the first line. Raises `HeaderError`."""
    if not isinstance(value, dict) or "lmtp_trace" not in value:
        raise HeaderError('the first line is not a trace header ({"lmtp_trace": 1, ...})')
    version = value["lmtp_trace"]
    if type(version) is not int:
        raise HeaderError(f"lmtp_trace is {version!r}; expected the version as an integer")
    if version != VERSION:
        raise HeaderError(f"the trace is of version {version}; this lmtool reads version {VERSION}")
    known = {name: _checked(name, member) for name, member in value.items() if name in _KNOWN and member is not None}
    extra = {name: member for name, member in value.items() if name not in _KNOWN and name != "lmtp_trace"}
    return Header(**known, extra=extra)  # type: ignore[arg-type] # each member was checked against its field


def _checked(name: str, member: object) -> object:
    if name in ("transport", "model", "run", "verify"):
        return _expect(name, member, isinstance(member, dict), "an object")
    if name in ("redacted", "covers"):
        strings = isinstance(member, list) and all(isinstance(one, str) for one in member)
        _expect(name, member, strings, "a list of strings")
        return tuple(member) if isinstance(member, list) else ()
    if name == "json":
        return _expect(name, member, style_named(member) is not None, f"one of {', '.join(STYLES)}")
    if name == "times":
        return _expect(name, member, member in ("measured", "numbered"), "measured or numbered")
    return _expect(name, member, isinstance(member, str), "a string")


def _expect(name: str, member: object, holds: bool, expected: str) -> object:
    if not holds:
        shown = repr(member)
        raise HeaderError(f"{name} is {shown[:60]}; expected {expected}")
    return member


T = TypeVar("T")
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_MOST_CONNECTIONS = 2**53
_MEMBERS: Mapping[type[Event], tuple[str, ...]] = {
    Close: ("by", "code", "reason"),
    Blob: ("sha256", "value"),
    Request: ("method", "path", "headers"),
    Response: ("status", "reason", "headers"),
    End: ("events", "tokens", "sha256"),
}
"""Members of the object in a line, named like the event's fields."""


class LineError(ValueError):
    """A line does not follow the format; the message gives the reason."""


def write_header(header: Header) -> str:
    """The first line of a trace, without its line end."""
    return write_json(to_json(header), "py")


def read_header(line: bytes) -> Header:
    """Header from the first line. Raises `HeaderError`."""
    try:
        return from_json(_DECODER.decode(line))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise HeaderError(f"the first line is not a trace header: {_reason(error)}") from None


def write_event(event: Event, style: Style) -> str:
    """Line of an event, without its line end. style: the header's, which parsed content need not repeat."""
    head = f"[{event.time:.6f}, {_json(kind_of(event))}, {event.connection}"
    return f"{head}{_tail(event, style)}]"


def kind_of(event: Event) -> str:
    """Kind of an event, as its line names it."""
    if isinstance(event, Frame):
        return event.direction
    if isinstance(event, Piece | Remark | Other):
        return event.kind
    return type(event).__name__.lower()


def facts_of(event: Event) -> Mapping[str, object]:
    """Object in the line of an event; empty for an event without one."""
    match event:
        case Open() | Drop() | Stat() | Turn():
            return event.facts
        case Vocab():
            return {str(i): _text_or_hex(text) for i, text in event.tokens.items()}
    return {name: getattr(event, name) for name in _MEMBERS.get(type(event), ())}


def _tail(event: Event, style: Style) -> str:
    match event:
        case Frame() | Piece():
            return _content(event.content, style)
        case Blob():
            return f', {{"sha256": {_json(event.sha256)}, "value": {_json(event.value)}}}'
        case Remark():
            return f", {_json(event.text)}"
        case Request() if event.body is not None:
            return f", {_json(facts_of(event))}{_content(event.body, style)}"
        case Other():
            return "".join(f", {_json(one)}" for one in event.rest)
        case Vocab():
            names = f", {_json({str(i): name for i, name in event.names.items()})}" if event.names else ""
            return f", {_json(facts_of(event))}{names}"
        case Stat() | Turn():
            return f", {_json(facts_of(event))}"
        case Message():
            return f", {_json(event.direction)}, {_json(event.value)}"
    facts = facts_of(event)
    return f", {_json(facts)}" if facts else ""


def _content(content: Content, style: Style) -> str:
    if isinstance(content, JsonText):
        named = "" if content.style == style else f", {_json(content.style)}"
        return f", {_json(content.lead)}, {content.json}{named}"
    return f", null, {_json(_text_or_hex(content))}"


def _text_or_hex(text: str | bytes) -> object:
    return text if isinstance(text, str) else {"hex": text.hex()}


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()


def read_event(line: bytes, style: Style) -> Event:
    """Event of a line. style: the header's. Raises `LineError`."""
    try:
        value = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise LineError(f"not JSON: {_reason(error)}") from None
    return event_from(value, style)


def event_from(value: object, style: Style) -> Event:
    """Event of a line's JSON. Raises `LineError`."""
    if not isinstance(value, list) or len(value) < 3:
        raise LineError("not an event; expected an array [time, kind, connection, ...]")
    time, kind, connection, *rest = value
    if type(time) not in (int, float) or not 0 <= time <= 1e12:
        raise LineError(f"the time is {_quoted(time)}; expected seconds, 0 or more")
    if not isinstance(kind, str):
        raise LineError(f"the kind is {_quoted(kind)}; expected a string")
    if type(connection) is not int or not 0 <= connection < _MOST_CONNECTIONS:
        raise LineError(f"the connection is {_quoted(connection)}; expected an integer, 0 or more")
    read = _READERS.get(kind)
    if read is None:
        return Other(float(time), kind, connection, tuple(rest))
    return read(_Line(float(time), kind, connection, rest, style))


@dataclass(slots=True)
class _Line:
    """Typed access to the parts of a line."""

    time: float
    kind: str
    connection: int
    rest: list[object]
    style: Style

    def part(self, i: int, kind: type[T], called: str) -> T:
        value = self.rest[i] if i < len(self.rest) else None
        if not isinstance(value, kind):
            raise LineError(f"{self.kind} has {_quoted(value)} where {called} is expected")
        return value

    def facts(self) -> Mapping[str, object]:
        return self.part(0, dict, "an object") if self.rest else {}

    def member(self, name: str, kind: type[T], called: str) -> T:
        value = self.facts().get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise LineError(f"{name} of {self.kind} is {_quoted(value)}; expected {called}")
        return value

    def headers(self) -> Mapping[str, str]:
        headers = self.member("headers", dict, "an object")
        if not all(isinstance(value, str) for value in headers.values()):
            raise LineError(f"headers of {self.kind} has a value that is not a string")
        return headers

    def content(self, start: int) -> Content:
        if len(self.rest) < start + 2:
            raise LineError(f"{self.kind} ends too early; expected a command or null, and a payload")
        lead, payload, *more = self.rest[start:]
        if lead is None:
            return _exact(self.kind, payload)
        if not isinstance(lead, str):
            raise LineError(f"{self.kind} has {_quoted(lead)} where a command or null is expected")
        style = style_named(more[0]) if more else self.style
        if style is None:
            raise LineError(f"{self.kind} has {_quoted(more[0])} where one of {', '.join(STYLES)} is expected")
        return JsonText(lead, payload, style)


def _exact(called: str, value: object) -> str | bytes:
    """Text, or the bytes of `{"hex": ...}`."""
    if isinstance(value, str):
        return value
    digits = value.get("hex") if isinstance(value, dict) else None
    if not isinstance(digits, str):
        raise LineError(f'{called} has {_quoted(value)} where text or {{"hex": ...}} is expected')
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise LineError(f"{called} has {_quoted(digits)} where an even number of hex digits is expected") from None


def _message(line: _Line) -> Event:
    direction = line.part(0, str, "> or <")
    if direction not in {">", "<"}:
        raise LineError(f"message has {_quoted(direction)} where > or < is expected")
    way: Literal[">", "<"] = ">" if direction == ">" else "<"
    return Message(line.time, way, line.connection, line.part(1, dict, "an object"))


def _close(line: _Line) -> Event:
    facts = line.facts()
    code = None if facts.get("code") is None else line.member("code", int, "an integer")
    reason = "" if facts.get("reason") is None else line.member("reason", str, "a string")
    return Close(line.time, line.connection, line.member("by", str, "client or server"), code, reason)


def _vocab(line: _Line) -> Event:
    tokens: dict[int, str | bytes] = {}
    for name, text in line.part(0, dict, "an object of token ids").items():
        if not (name.isascii() and name.isdigit() and len(name) < 20):
            raise LineError(f"vocab has {_quoted(name)} where a token id is expected")
        tokens[int(name)] = _exact("vocab", text)
    given = line.rest[1] if len(line.rest) > 1 else None
    names = given.items() if isinstance(given, dict) else ()
    known_names = {
        int(i): name for i, name in names if i.isascii() and i.isdigit() and len(i) < 20 and type(name) is str
    }
    return Vocab(line.time, line.connection, tokens, known_names)


def _blob(line: _Line) -> Event:
    if "value" not in line.facts():
        raise LineError("blob has no value")
    return Blob(line.time, line.connection, line.member("sha256", str, "a string"), line.facts()["value"])


def _request(line: _Line) -> Event:
    method, path = line.member("method", str, "a string"), line.member("path", str, "a string")
    body = line.content(1) if len(line.rest) > 1 else None
    return Request(line.time, line.connection, method, path, line.headers(), body)


def _response(line: _Line) -> Event:
    status = line.member("status", int, "an integer")
    return Response(line.time, line.connection, status, line.member("reason", str, "a string"), line.headers())


def _end(line: _Line) -> Event:
    events, tokens = line.member("events", int, "a count"), line.member("tokens", int, "a count")
    return End(line.time, events, tokens, line.member("sha256", str, "a string"))


_READERS: Mapping[str, Callable[[_Line], Event]] = {
    ">": lambda line: Frame(line.time, ">", line.connection, line.content(0)),
    "<": lambda line: Frame(line.time, "<", line.connection, line.content(0)),
    "message": _message,
    "open": lambda line: Open(line.time, line.connection, line.facts()),
    "close": _close,
    "drop": lambda line: Drop(line.time, line.connection, line.facts()),
    "vocab": _vocab,
    "blob": _blob,
    "mark": lambda line: Remark(line.time, "mark", line.connection, line.part(0, str, "text")),
    "note": lambda line: Remark(line.time, "note", line.connection, line.part(0, str, "text")),
    "stat": lambda line: Stat(line.time, line.connection, line.part(0, dict, "an object")),
    "turn": lambda line: Turn(line.time, line.connection, line.part(0, dict, "an object")),
    "end": _end,
    "request": _request,
    "response": _response,
    "sse": lambda line: Piece(line.time, "sse", line.connection, line.content(0)),
    "body": lambda line: Piece(line.time, "body", line.connection, line.content(0)),
    "done": lambda line: Done(line.time, line.connection),
}


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} of a string is not UTF-8"
    return str(error).removeprefix("JSON is malformed: ")


def _quoted(value: object) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


LARGE = 8192
"""Characters of JSON above which a member of a payload becomes a blob."""


class LargeValues:
    """Moves large values from events into blobs, each once per trace."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def take_out(self, event: Event) -> Iterator[Event]:
        """The event with references to large values, after the new blobs that it refers to.

        Checks the members of a payload or, if it is a list, of its entries.
        """
        content = _json_of(event)
        if content is None:
            yield event
            return
        large: dict[str, object] = {}
        light = _with_members(content, lambda member: _replaced(member, content, large))
        for sha256, value in large.items():
            if sha256 not in self._written:
                self._written.add(sha256)
                yield Blob(event.time, 0, sha256, value)
        yield _with_content(event, light)


def put_back(event: Event, value_of: Callable[[str], object]) -> Event:
    """The event as it was sent: references replaced by the values that `value_of` gives for their hashes."""
    content = _json_of(event)
    if content is None:
        return event
    return _with_content(event, _with_members(content, lambda one: value_of(sha) if (sha := reference(one)) else one))


def reference(value: object) -> str | None:
    """Hash in a reference; None for any other value."""
    sha256 = value.get("$blob") if isinstance(value, dict) and len(value) == 1 else None
    return sha256 if isinstance(sha256, str) else None


def references(event: Event) -> list[str]:
    """Hashes that an event's content refers to."""
    return [sha for member in _members(event) if (sha := reference(member))]


def may_be_large(event: Event) -> bool:
    """True if an event may hold large values; an estimate that does not encode it."""
    # The shortest element takes three characters in a list ("1, "), seven in an object.
    return any(len(one) > LARGE // 64 for one in _members(event) if isinstance(one, dict | list | str))


def _json_of(event: Event) -> JsonText | None:
    content = event.content if isinstance(event, Frame) else event.body if isinstance(event, Request) else None
    return content if isinstance(content, JsonText) else None


def _with_content(event: Event, content: JsonText) -> Event:
    return replace(event, content=content) if isinstance(event, Frame) else replace(event, body=content)  # type: ignore[arg-type] # a Request


def _members(event: Event) -> list[object]:
    content = _json_of(event)
    if content is None:
        return []
    entries = content.value if isinstance(content.value, list) else [content.value]
    return [member for entry in entries if isinstance(entry, dict) for member in entry.values()]


def _with_members(content: JsonText, change: Callable[[object], object]) -> JsonText:
    """The content with each member of its payload, or of its payload's entries, changed."""

    def changed(entry: object) -> object:
        return {name: change(member) for name, member in entry.items()} if isinstance(entry, dict) else entry

    value = content.value
    return replace(content, value=[changed(entry) for entry in value] if isinstance(value, list) else changed(value))


def _replaced(member: object, content: JsonText, large: dict[str, object]) -> object:
    """Reference to a large member, which is added to `large` by its hash; any other member unchanged."""
    if isinstance(member, dict | list | str):
        text = write_json(member, content.style)
        if len(text) > LARGE:
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            large[sha256] = member
            return {"$blob": sha256}
    return member
