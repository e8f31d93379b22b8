"""Traces as asciicast, CSV, HAR, wire log and Markdown; wire logs as traces."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.core.logprobs.heat import THOUGHT_INK
from lmtool.settings.terminal import visible
from lmtool.trace.answers import Answers, StreamText
from lmtool.trace.codec import kind_of
from lmtool.trace.events import Close, Drop, Frame, Message, Open, Piece, Request, Response, parse_frame
from lmtool.trace.exchanges import Collector, HttpExchange
from lmtool.trace.stream_events import PROMPT_MEMBERS, RequestStarted, Stream, new_stream, prompt_text, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lmtool.trace.codec import Header
    from lmtool.trace.events import Direction, Event, Style

_COMMAND = re.compile(r"(GENERATE|SCORE|MODEL_INFO|MODELS|BUFFER|WATCH|CANCEL|TOKEN|MSG) \S")
_FROM_SERVER = ("TOKEN", "MSG")
COLUMNS = ("time", "stream", "token", "text", "logprob", "finish_reason", "error", "top_logprobs", "thought", "prompt")
_FORMULA = "=+-@\t\uff1d\uff0b\uff0d\uff20"
"""First characters of a cell that spreadsheets read as a formula."""
THOUGHT_SGR = f"3;38;5;{THOUGHT_INK}"
"""Terminal style of reasoning."""
_LARGE = (*PROMPT_MEMBERS, "logit_bias", "tools", "functions")
"""Members of a request that a document omits."""


def as_csv(header: Header, events: Iterable[Event], choice: int | None = None) -> Iterator[str]:
    """A table with one row per output, and the prompt in the first row of a stream.

    A stream without outputs has one row. choice: only this choice of HTTP answers.
    """
    del header
    answers, asked = Answers(stream_of), dict[str, RequestStarted]()
    yield _row(COLUMNS)
    for event in events:
        for step in answers.follow(event):
            if isinstance(step, RequestStarted) and step.stream_kind:
                asked[step.label] = step
            if isinstance(step, RequestStarted) or choice not in (None, step.stream.choice):
                continue
            started = asked.pop(step.stream.label.removesuffix(f".{step.stream.choice}"), None)
            prompt = None if started is None else prompt_text(started, answers.text_of_id)
            top = " ".join(f"{_name(one)}:{p:.6g}" for one, p in step.alternatives) or None
            facts = (step.token, answers.text_of(step), step.logprob, step.finish_reason, step.error, top)
            thought = 1 if step.is_thought else None
            yield _row([f"{step.time:.6f}", step.stream.label, *facts, thought, prompt])
    for started in asked.values():
        prompt = prompt_text(started, answers.text_of_id)
        yield _row([f"{started.time:.6f}", started.label, *[None] * (len(COLUMNS) - 3), prompt])


def _name(alternative: int | str | bytes) -> str:
    """Name of an alternative: an id unchanged, a text as JSON, bytes as `0xf09f`."""
    if isinstance(alternative, bytes):
        return f"0x{alternative.hex()}"
    return json.dumps(alternative, ensure_ascii=False)


def _row(values: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(map(_cell, values))
    return line.getvalue()


def as_asciicast(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """An asciicast version 2: the text of all streams as it arrived, with a new line for each change of stream.

    Reasoning has its own style; the answer after it starts a new line.
    """
    title = _line(header.title or "lmtool trace")
    yield json.dumps({"version": 2, "width": 100, "height": 30, "title": title}) + "\n"
    answers, texts, last = Answers(stream_of), dict[Stream, StreamText](), ("", False)
    for event in events:
        for step in answers.follow(event):
            if isinstance(step, RequestStarted):
                continue
            stream = step.stream
            text = texts.setdefault(stream, StreamText(answers.vocabulary)).add(step)
            shown = visible(text if step.error is None else f"[{step.error}]")
            if step.last:
                del texts[stream]
            if shown:
                head = "" if (stream.label, step.is_thought) == last else f"\r\n{_line(stream.label)} | "
                last = stream.label, step.is_thought
                shown = shown.replace("\n", "\r\n")
                shown = f"\x1b[{THOUGHT_SGR}m{shown}\x1b[0m" if step.is_thought else shown
                yield json.dumps([round(step.time, 6), "o", head + shown]) + "\n"


def _line(text: str) -> str:
    """Text on one line, without control characters."""
    return visible(text).replace("\n", "⏎")


def _plain(text: str) -> str:
    """Text for a document, with HTML and Markdown escaped."""
    return re.sub(r"([\\`*_{}\[\]()#!|~])", r"\\\1", html.escape(_line(text), quote=False))


def _cell(value: object) -> object:
    """Text for a table cell; text that looks like a formula gets a quote in front."""
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if len(shown) > 1 and shown[0] in _FORMULA else shown


@dataclass(slots=True, eq=False)
class _Section(Stream):
    """A stream as a section of a Markdown document."""

    asked: RequestStarted | None = None
    text: StreamText | None = None
    thought: list[str] = field(default_factory=list)
    """Pieces of the model's reasoning."""
    pieces: list[str] = field(default_factory=list)

    def written(self, ending: str, text_of_id: Callable[[int], str | None]) -> str:
        assert self.asked is not None
        members = {name: value for name, value in self.asked.payload.items() if name not in _LARGE}
        parameters = _line(json.dumps(members, ensure_ascii=False))
        ticks = "`" * (_longest_run(parameters) + 1)
        head = f"## {_plain(self.label)} · {_plain(self.asked.kind)} · {self.started_at:.3f} s"
        asked = prompt_text(self.asked, text_of_id)
        prompt = _fenced("prompt", [asked]) if asked else ""
        thought = _fenced("thought", self.thought) if self.thought else ""
        said = f"{prompt}{thought}{_fenced('text', self.pieces)}"
        return f"\n{head}\n\n{ticks}{parameters}{ticks}\n\n{said}{_plain(ending)}\n"


def _fenced(kind: str, pieces: list[str]) -> str:
    text = visible("".join(pieces))
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{kind}\n{text}\n{fence}\n\n"


def as_markdown(header: Header, events: Iterable[Event], choice: int | None = None) -> Iterator[str]:
    """A document with one section per stream: request, prompt and text. Holds texts of running streams in memory.

    choice: only this choice of HTTP answers.
    """
    running: dict[_Section, None] = {}

    def begin(started: RequestStarted, index: int, number: int) -> _Section:
        text = StreamText(answers.vocabulary)
        section = new_stream(_Section, started, index, number, asked=started, text=text)
        if index >= 0 and choice in (None, number):
            running[section] = None
        return section

    yield f"# {_plain(header.title or 'Trace')}\n"
    answers = Answers(begin)
    for event in events:
        for step in answers.follow(event):
            section = step.stream
            assert isinstance(section, _Section)
            if isinstance(step, RequestStarted) or section not in running:
                continue
            assert section.text is not None
            (section.thought if step.is_thought else section.pieces).append(section.text.add(step))
            if step.last:
                del running[section]
                yield section.written(step.error or str(step.finish_reason), answers.text_of_id)
    for section in running:
        yield section.written("not finished", answers.text_of_id)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def as_lines(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """A wire log: text frames after `> ` and `< `, one per line; `# ` before everything else.

    Raises `FileError` for a trace without any text frame, before the first line.
    """
    del header
    left_out, any_frame = list[str](), False
    for event in events:
        wire = event.wire() if isinstance(event, Frame) else None
        if isinstance(wire, str) and not {"\n", "\r"} & set(wire):
            any_frame = True
            yield from left_out
            left_out.clear()
            yield f"{kind_of(event)} {wire}\n"
        elif isinstance(event, Frame | Message | Request | Response | Piece):
            left_out.append(
                f"# {event.time:.6f} {kind_of(event)} of connection {event.connection} is not a line of text\n"
            )
    if left_out and not any_frame:
        raise FileError(
            f"the trace has no WebSocket text frame, only: {left_out[0].strip('# ' + chr(10))}", "use har or markdown"
        )
    yield from left_out


def as_har(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """An HTTP archive: one entry per exchange, and per WebSocket with `_webSocketMessages`; held in memory.

    Evergreen messages are written as JSON.
    """
    sockets: dict[int, dict[str, object]] = {}
    collector, start = Collector(), datetime.fromisoformat(header.created or "1970-01-01T00:00:00Z")
    for event in events:
        collector.take(event)
        if isinstance(event, Open):
            sockets[event.connection] = _har_entry(event, start)
        elif isinstance(event, Request):
            sockets.pop(event.connection, None)
        elif isinstance(event, Frame | Message):
            entry = sockets.setdefault(event.connection, _har_entry(Open(event.time, event.connection), start))
            messages = entry["_webSocketMessages"]
            assert isinstance(messages, list)
            messages.append(_har_message(event))
        elif isinstance(event, Close | Drop) and event.connection in sockets:
            sockets[event.connection]["comment"] = f"ended at {event.time:.6f} s"
    exchanges = [_har_exchange(one, start) for one in collector.exchanges if isinstance(one, HttpExchange)]
    creator = {"name": "lmtool", "version": header.by or ""}
    entries = sorted([*sockets.values(), *exchanges], key=lambda entry: str(entry["startedDateTime"]))
    yield json.dumps({"log": {"version": "1.2", "creator": creator, "entries": entries}}) + "\n"


def _har_entry(opened: Open, start: datetime) -> dict[str, object]:
    empty = _har_body(b"", {})
    return {
        "startedDateTime": (start + timedelta(seconds=opened.time)).isoformat(),
        "time": opened.time * 1000,
        "_resourceType": "websocket",
        "request": _har_head({}) | {"method": "GET", "url": f"ws://recorded{opened.facts.get('path', '/')}"},
        "response": _har_head({}) | {"status": 101, "statusText": "Switching Protocols", "content": empty},
        "_webSocketMessages": [],
    }


def _har_exchange(one: HttpExchange, start: datetime) -> dict[str, object]:
    asked, answer = one.request, one.response
    request = _har_head(asked.headers) | {"method": asked.method, "url": f"http://recorded{asked.path}"}
    if asked.body is not None:
        request["postData"] = _har_body(one.text, asked.headers)
    headers = {} if answer is None else answer.headers
    content = _har_body(b"".join(part.data for part in one.parts), headers)
    status = (0, "") if answer is None else (answer.status, answer.reason)
    return {
        "startedDateTime": (start + timedelta(seconds=one.time)).isoformat(),
        "time": max((part.offset for part in one.parts), default=0.0) * 1000,
        "request": request,
        "response": _har_head(headers) | {"status": status[0], "statusText": status[1], "content": content},
        **({} if one.complete else {"comment": "the answer is not complete"}),
    }


def _har_head(headers: Mapping[str, str]) -> dict[str, object]:
    listed = [{"name": name, "value": value} for name, value in headers.items()]
    return {"httpVersion": "HTTP/1.1", "headers": listed, "cookies": [], "headersSize": -1, "bodySize": -1}


def _har_body(data: bytes, headers: Mapping[str, str]) -> dict[str, object]:
    try:
        body: dict[str, object] = {"text": data.decode()}
    except UnicodeDecodeError:
        body = {"text": base64.b64encode(data).decode(), "encoding": "base64"}
    return {"size": len(data), "mimeType": headers.get("content-type", ""), **body}


def _har_message(event: Frame | Message) -> Mapping[str, object]:
    wire = event.wire() if isinstance(event, Frame) else json.dumps(event.value)
    data, opcode = (wire, 1) if isinstance(wire, str) else (wire.hex(), 2)
    return {"type": "send" if event.direction == ">" else "receive", "time": event.time, "opcode": opcode, "data": data}


def from_wire_log(lines: Iterable[str], style: Style, left_out: list[int] | None = None) -> Iterator[Event]:
    """Events of a plain wire log as one connection, as websocat and wscat print it; times are event numbers / 1000.

    `> ` marks the client, `< ` the server; a line that begins with a known command needs no mark. left_out: gets the
    numbers of all other lines except comments. Raises `FileError` if no line is a frame.
    """
    yield Open(0.0, 1)
    number, first = 1, ""
    for place, line in enumerate(lines, 1):
        if frame := _logged_frame(line.rstrip("\r\n")):
            direction, text = frame
            yield Frame(number / 1000, direction, 1, parse_frame(text, style))
            number += 1
        elif line.strip() and not line.startswith("# "):
            first = first or f"line {place} is {line.strip()[:40]!r}"
            if left_out is not None:
                left_out.append(place)
    if number == 1:
        found = first or "it is empty"
        raise FileError(f"not a trace, and no line is a frame: {found}", "expected lines that begin with > or <")


def _logged_frame(line: str) -> tuple[Direction, str] | None:
    if line.startswith("> "):
        return ">", line[2:]
    if line.startswith("< "):
        return "<", line[2:]
    command = _COMMAND.match(line)
    if command is None:
        return None
    return "<" if command[1] in _FROM_SERVER else ">", line


FORMATS: Mapping[str, Callable[[Header, Iterable[Event]], Iterator[str]]] = {
    "asciicast": as_asciicast,
    "csv": as_csv,
    "har": as_har,
    "lines": as_lines,
    "markdown": as_markdown,
}
"""Writer of each format, by name."""
