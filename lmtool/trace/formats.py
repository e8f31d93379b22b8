"""Other formats: traces as terminal recordings, tables, documents, wire logs, browser archives; wire logs read."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.logprobs.heat import THOUGHT_INK
from lmtool.trace.answers import Answers, StreamText
from lmtool.trace.content import parse_frame
from lmtool.trace.events import Close, Drop, Frame, Open
from lmtool.trace.stream_events import PROMPT_MEMBERS, RequestStarted, Stream, new_stream, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lmtool.trace.content import Style
    from lmtool.trace.events import Direction, Event
    from lmtool.trace.header import Header

_COMMAND = re.compile(r"(GENERATE|SCORE|MODEL_INFO|MODELS|BUFFER|WATCH|CANCEL|TOKEN|MSG) \S")
_FROM_SERVER = ("TOKEN", "MSG")
COLUMNS = ("time", "stream", "token", "text", "logprob", "finish_reason", "error", "top_logprobs", "thought")
THOUGHT_SGR = f"3;38;5;{THOUGHT_INK}"
"""How a terminal recording shows what a model thinks before its answer."""
_LARGE = (*PROMPT_MEMBERS, "logit_bias")
"""Members of a request that a document leaves out."""


def as_csv(header: Header, events: Iterable[Event], choice: int | None = None) -> Iterator[str]:
    """A table with one row an output; choice: of this choice of each HTTP answer alone."""
    del header
    answers = Answers(stream_of)
    yield _row(COLUMNS)
    for event in events:
        for step in answers.follow(event):
            if isinstance(step, RequestStarted) or choice not in (None, step.stream.choice):
                continue
            top = " ".join(f"{_name(one)}:{p:.6g}" for one, p in step.alternatives) or None
            facts = (step.token, answers.text_of(step), step.logprob, step.finish_reason, step.error, top)
            thought = 1 if step.is_thought else None
            yield _row([f"{step.time:.6f}", step.stream.label, *facts, thought])


def _name(alternative: int | str | bytes) -> str:
    """An id as it is, a text as JSON, bytes as `0xf09f`."""
    if isinstance(alternative, bytes):
        return f"0x{alternative.hex()}"
    return json.dumps(alternative, ensure_ascii=False)


def _row(values: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def as_asciicast(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """An asciicast version 2: the text of all streams as it came, each change of stream on a line of its own.

    So does an answer behind its thought, which has a look of its own.
    """
    yield json.dumps({"version": 2, "width": 100, "height": 30, "title": header.title or "lmtool trace"}) + "\n"
    answers, texts, last = Answers(stream_of), dict[Stream, StreamText](), ("", False)
    for event in events:
        for step in answers.follow(event):
            if isinstance(step, RequestStarted):
                continue
            stream = step.stream
            text = texts.setdefault(stream, StreamText(answers.vocabulary)).add(step)
            shown = _harmless(text if step.error is None else f"[{step.error}]")
            if step.last:
                del texts[stream]
            if shown:
                head = "" if (stream.label, step.is_thought) == last else f"\r\n{stream.label} | "
                last = stream.label, step.is_thought
                shown = shown.replace("\n", "\r\n")
                shown = f"\x1b[{THOUGHT_SGR}m{shown}\x1b[0m" if step.is_thought else shown
                yield json.dumps([round(step.time, 6), "o", head + shown]) + "\n"


def _harmless(text: str) -> str:
    """A model's text without what steers a terminal."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


@dataclass(slots=True, eq=False)
class _Section(Stream):
    """A stream as a section of a document."""

    request: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    text: StreamText | None = None
    thought: list[str] = field(default_factory=list)
    """Pieces of what the model thinks before its answer."""
    pieces: list[str] = field(default_factory=list)

    def written(self, ending: str) -> str:
        parameters = json.dumps(self.parameters, ensure_ascii=False)
        head = f"## {self.label} · {self.request} · {self.started_at:.3f} s"
        thought = _fenced("thought", self.thought) if self.thought else ""
        return f"\n{head}\n\n`{parameters}`\n\n{thought}{_fenced('text', self.pieces)}{ending}\n"


def _fenced(kind: str, pieces: list[str]) -> str:
    text = "".join(pieces)
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{kind}\n{text}\n{fence}\n\n"


def as_markdown(header: Header, events: Iterable[Event], choice: int | None = None) -> Iterator[str]:
    """A document with one section a stream: its request, then its text. Texts of running streams are held in memory.

    choice: of this choice of each HTTP answer alone.
    """
    running: dict[_Section, None] = {}

    def begin(started: RequestStarted, index: int, number: int) -> _Section:
        parameters = {name: value for name, value in started.payload.items() if name not in _LARGE}
        text = StreamText(answers.vocabulary)
        section = new_stream(_Section, started, index, number, request=started.kind, parameters=parameters, text=text)
        if index >= 0 and choice in (None, number):
            running[section] = None
        return section

    yield f"# {header.title or 'Trace'}\n"
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
                yield section.written(step.error or str(step.finish_reason))
    for section in running:
        yield section.written("not finished")


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def as_lines(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """A wire log: `> ` and `< ` before each text frame, a line each. Binary frames and line feeds are left out."""
    del header
    for event in events:
        if isinstance(event, Frame):
            wire = event.wire()
            if isinstance(wire, str) and "\n" not in wire:
                yield f"{event.direction} {wire}\n"


def as_har(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """An HTTP archive with `_webSocketMessages`, one entry a connection; the frames of all are held in memory."""
    connections: dict[int, dict[str, object]] = {}
    for event in events:
        if isinstance(event, Open):
            connections[event.connection] = _har_entry(event)
        elif isinstance(event, Frame):
            entry = connections.setdefault(event.connection, _har_entry(Open(event.time, event.connection)))
            messages = entry["_webSocketMessages"]
            assert isinstance(messages, list)
            messages.append(_har_message(event))
        elif isinstance(event, Close | Drop) and event.connection in connections:
            connections[event.connection]["comment"] = f"ended at {event.time:.6f} s"
    creator = {"name": "lmtool", "version": header.by or ""}
    yield json.dumps({"log": {"version": "1.2", "creator": creator, "entries": list(connections.values())}}) + "\n"


def _har_entry(opened: Open) -> dict[str, object]:
    path = opened.facts.get("path", "/")
    return {
        "startedDateTime": None,
        "time": opened.time * 1000,
        "_resourceType": "websocket",
        "request": {"method": "GET", "url": f"ws://recorded{path}", "httpVersion": "HTTP/1.1", "headers": []},
        "response": {"status": 101, "statusText": "Switching Protocols", "httpVersion": "HTTP/1.1", "headers": []},
        "_webSocketMessages": [],
    }


def _har_message(frame: Frame) -> Mapping[str, object]:
    wire = frame.wire()
    data, opcode = (wire, 1) if isinstance(wire, str) else (wire.hex(), 2)
    return {"type": "send" if frame.direction == ">" else "receive", "time": frame.time, "opcode": opcode, "data": data}


def from_wire_log(lines: Iterable[str], style: Style) -> Iterator[Event]:
    """A plain wire log as one connection, as websocat and wscat print it; times are event numbers / 1000.

    `> ` is the client, `< ` the server; a line that begins with a known command needs no mark.
    Other lines are passed over.
    """
    yield Open(0.0, 1)
    number = 1
    for line in lines:
        if frame := _logged_frame(line.rstrip("\r\n")):
            direction, text = frame
            yield Frame(number / 1000, direction, 1, parse_frame(text, style))
            number += 1


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
"""Name of a format to what writes it, piece by piece."""
