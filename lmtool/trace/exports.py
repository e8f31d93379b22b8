"""Traces in the formats of other programs: terminal recordings, tables, documents, wire logs, browser archives."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING

from lmtool.trace.conversation import Began, Conversation, StreamText
from lmtool.trace.events import Close, Drop, Frame, Open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lmtool.trace.events import Event
    from lmtool.trace.header import Header

COLUMNS = ("time", "stream", "token", "text", "logprob", "finish_reason", "error", "top_logprobs")


def as_csv(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """A table with one row an output; a logprob that is no number stays empty."""
    del header
    conversation = Conversation()
    yield _row(COLUMNS)
    for event in events:
        for step in conversation.follow(event):
            if isinstance(step, Began):
                continue
            out = step.output
            text = out.text if out.text is not None or out.token is None else conversation.text_of(out.token)
            logprob = out.logprob if out.logprob is not None and math.isfinite(out.logprob) else None
            top = None if out.top_logprobs is None else " ".join(f"{i}:{p:.6g}" for i, p in out.top_logprobs)
            yield _row([f"{step.time:.6f}", step.stream, out.token, text, logprob, out.finish_reason, out.error, top])


def _row(values: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def as_asciicast(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """An asciicast version 2: the text of all streams as it came, each change of stream on a line of its own."""
    yield json.dumps({"version": 2, "width": 100, "height": 30, "title": header.title or "lmtool trace"}) + "\n"
    conversation, texts, last = Conversation(), dict[str, StreamText](), ""
    for event in events:
        for step in conversation.follow(event):
            if isinstance(step, Began):
                texts[step.stream] = StreamText(conversation)
                continue
            text = texts.setdefault(step.stream, StreamText(conversation)).add(step.output)
            shown = _harmless(text if step.output.error is None else f"[{step.output.error}]")
            if step.output.last:
                del texts[step.stream]
            if shown:
                head = "" if step.stream == last else f"\r\n{step.stream} | "
                last = step.stream
                yield json.dumps([round(step.time, 6), "o", head + shown.replace("\n", "\r\n")]) + "\n"


def _harmless(text: str) -> str:
    """A model's text without what steers a terminal."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


def as_markdown(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """A document with one section a stream: its request, then its text. Texts of running streams are held in memory."""
    yield f"# {header.title or 'Trace'}\n"
    conversation, running = Conversation(), dict[str, tuple[Began, StreamText, list[str]]]()
    for event in events:
        for step in conversation.follow(event):
            if isinstance(step, Began):
                if step.kind != "MODEL_INFO":
                    running[step.stream] = (step, StreamText(conversation), [])
            elif step.stream in running:
                began, text, pieces = running[step.stream]
                pieces.append(text.add(step.output))
                if step.output.last:
                    del running[step.stream]
                    yield _section(began, "".join(pieces), step.output.error or str(step.output.finish_reason))
    for began, _, pieces in running.values():
        yield _section(began, "".join(pieces), "not finished")


def _section(began: Began, text: str, ending: str) -> str:
    fence = "`" * max(3, _longest_run(text) + 1)
    asked = {name: value for name, value in began.payload.items() if name not in ("prompt", "logit_bias", "messages")}
    return (
        f"\n## {began.stream} · {began.kind} · {began.time:.3f} s\n\n"
        f"`{json.dumps(asked, ensure_ascii=False)}`\n\n{fence}text\n{text}\n{fence}\n\n{ending}\n"
    )


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


FORMATS: Mapping[str, Callable[[Header, Iterable[Event]], Iterator[str]]] = {
    "asciicast": as_asciicast,
    "csv": as_csv,
    "har": as_har,
    "lines": as_lines,
    "markdown": as_markdown,
}
"""Name of a format to what writes it, piece by piece."""
