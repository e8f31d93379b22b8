"""Trace events as text: one line for people, JSON objects for programs."""

from __future__ import annotations

import base64
import json
import math
from itertools import groupby
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import probability
from lmtool.core.logprobs.numbers import format_probability
from lmtool.protocol.lmtp import frames
from lmtool.trace.codec import facts_of, kind_of
from lmtool.trace.events import (
    Blob,
    Close,
    Done,
    Drop,
    End,
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
)
from lmtool.trace.stream_events import RequestStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lmtool.trace.answers import Answers
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import OutputEvent, Stream, StreamEvent

_WIDE = 100
_MOST_ENTRIES = 20
"""Texts, buffers and runs of ids of a prompt to show."""


def describe(
    event: Event, answers: Answers[Stream], wants: Callable[[StreamEvent], bool] | None = None
) -> Iterator[str]:
    """Lines for people: one per token and per other event. Call in order; updates `answers`.

    wants: selects requests and outputs; without it everything is printed.
    """
    steps = answers.follow(event)
    for step in steps:
        if not isinstance(event, Message) if wants is None else wants(step):  # the message's own line shows it
            yield line_of(step, answers)
    if wants is None and (not steps or isinstance(event, Close | Drop | Message)):
        where = str(event.connection or "-")
        yield f"{event.time:12.6f}  {where:<7} {_other(event)}".replace("\n", "\\n")


def line_of(step: StreamEvent, answers: Answers[Stream]) -> str:
    """Line for a request or an output."""
    if isinstance(step, RequestStarted):
        label, mark, text = step.label, ">", _request(step, answers)
    else:
        label, mark, text = step.stream.label, "<", _output(step, answers)
    return f"{step.time:12.6f}  {label:<7} {mark} {text}".replace("\n", "\\n")


def _request(started: RequestStarted, answers: Answers[Stream]) -> str:
    parts = [started.kind, started.model or "", _prompt(started, answers)]
    known = ("model", "prompt", "messages", "input", "message", "stream_id", "scored", "append", "$blob")
    parts += [f"{name} {_short(value)}" for name, value in started.payload.items() if name not in known]
    if isinstance(scored := started.payload.get("scored"), list):
        parts.append(f"scored {len(scored)} ids")
    if (appended := started.payload.get("append")) is not None:
        parts.append(f"append {_ids_or_text(appended, answers)}")
    return " · ".join(filter(None, parts))


def _prompt(started: RequestStarted, answers: Answers[Stream]) -> str:
    prompt = started.prompt
    if isinstance(prompt, str):
        return _short(prompt)
    length = started.prompt_length
    entries = prompt[:40] if isinstance(prompt, list) else [None]
    is_part = [isinstance(one, int | str) or (isinstance(one, dict) and "buffer" in one) for one in entries]
    if length is None or not all(is_part):  # messages, or unreadable
        last = _last_message(prompt)
        return last if length is None or last else f"{length} in the prompt"
    return _ids_or_text(prompt, answers)


def _last_message(prompt: object) -> str:
    """Last message of a conversation and the number of messages; empty for anything else."""
    messages = [entry for entry in prompt if isinstance(entry, dict)] if isinstance(prompt, list) else []
    if not messages or len(messages) != len(prompt if isinstance(prompt, list) else []):
        return ""
    role, content = messages[-1].get("role"), messages[-1].get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(role, str) or not isinstance(content, str):
        return ""
    several = f"{len(messages)} messages, " if len(messages) > 1 else ""
    return f"{several}{role} {_short(content)}"


def _ids_or_text(entries: object, answers: Answers[Stream]) -> str:
    """Ids with their text, texts and buffers, of a prompt or of text appended to a buffer."""
    if not isinstance(entries, list):
        return _short(entries)
    groups = []
    for is_ids, group in groupby(entries, key=lambda entry: isinstance(entry, int)):
        ids = list(group)
        if not is_ids:
            groups += [_buffer(entry) if isinstance(entry, dict) else _short(entry) for entry in ids[:_MOST_ENTRIES]]
            continue
        texts = (answers.text_of_id(token) or answers.names.get(token, "") for token in ids[:40])
        known = "".join(texts)
        groups.append(f"{len(ids)} ids" + (f" {_short(known)}" if known else ""))
    return " + ".join(groups[:_MOST_ENTRIES]) or "0 ids"


def _buffer(entry: Mapping[str, object]) -> str:
    """`buffer story[:12]`."""
    length = entry.get("length")
    return f"buffer {entry.get('buffer')}" + ("" if length is None else f"[:{length}]")


def _output(output: OutputEvent, answers: Answers[Stream]) -> str:
    if output.error is not None:
        how = "unfinished" if output.stream.cut else "error"
        return f"{how} · {_short(output.stream.failure or output.error)}"
    parts = []
    text = answers.text_of(output)
    name = "" if text or output.token is None else answers.names.get(output.token, "")
    if name:
        parts.append(f"{output.token:>6} {name}")
    elif output.token is not None:
        parts.append(f"{output.token:>6}" + ("" if text is None else f" {_short(text)}"))
    elif output.counts:
        what = "tool " if output.is_tool_name else "arguments " if output.call is not None else "piece "
        parts.append(f"{what if output.is_piece else ''}{_short(text or '')}")
    if output.logprob is not None:
        parts.append(f"p {format_probability(probability(output.logprob))}")
    if output.is_thought:
        parts.append("thought")
    if output.finish_reason is not None:
        parts.append(output.finish_reason)
    return " · ".join(parts) or "nothing"


def _other(event: Event) -> str:  # noqa: C901 - one short case per kind reads best in one place
    match event:
        case Frame():
            wire = event.wire()
            shown = f"{len(wire)} bytes, binary" if isinstance(wire, bytes) else _cut(wire)
            return f"{event.direction} {shown}"
        case Message():
            return f"{event.direction} {_message(event)}"
        case Request():
            return f"> {event.method} {event.path}"
        case Response():
            return f"< {event.status} {event.reason} · {event.headers.get('content-type', '')}".rstrip(" ·")
        case Piece():
            return f"< {_cut(event.wire().decode('utf-8', 'replace').strip())}"
        case Close():
            return f"close by {event.by}" + ("" if event.code is None else f" · {event.code} {event.reason}".rstrip())
        case Open() | Drop() | Stat() | Turn():
            facts = " · ".join(f"{name} {_short(value)}" for name, value in event.facts.items())
            return f"{type(event).__name__.lower()} {facts}".rstrip()
        case Vocab():
            return f"vocab · {len(event.tokens)} ids"
        case Blob():
            return f"blob {event.sha256[:12]}"
        case Remark():
            return f"{event.kind} {_cut(event.text)}"
        case End():
            return f"end · {event.events} events" + (f" · {event.tokens} tokens" if event.tokens else "")
        case Done():
            return "< done"
        case Other():
            return f"{event.kind} {_short(event.rest)}"


def _message(event: Message) -> str:
    """Short description of a message's actions and fragments."""
    actions = frames.entries_of(event.value.get("actions"))
    parts = [f"{each.get('name', '')}({_pairs(each, 'inputs')}) -> {_pairs(each, 'outputs')}" for each in actions]
    return _cut(" · ".join(parts + [_fragment(each) for each in event.fragments()]) or "empty message")


def _pairs(action: Mapping[str, object], name: str) -> str:
    return ", ".join(f"{each.get('name', '')}={each.get('id', '')}" for each in frames.entries_of(action.get(name)))


def _fragment(fragment: Mapping[str, object]) -> str:
    chunk = fragment.get("chunkFragment")
    data = chunk_text(chunk) if isinstance(chunk, dict) else None
    children = fragment.get("childIds")
    shown = (
        _short(data) if data is not None else f"[{', '.join(map(str, children))}]" if isinstance(children, list) else ""
    )
    return f"{fragment.get('id', '')}#{fragment.get('seq', 0)} {shown}".rstrip() + (
        "…" if fragment.get("continued") else ""
    )


def chunk_text(chunk: Mapping[str, object]) -> str:
    """Content of a leaf's chunk: its text, its number of bytes, or its reference."""
    data = chunk.get("data")
    if not isinstance(data, str):
        return str(chunk.get("ref") or data or "")
    try:
        payload = base64.b64decode(data)
        return payload.decode()
    except UnicodeDecodeError:
        return f"{len(payload)} bytes"
    except ValueError:
        return data  # not base64: written by another program


def _short(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False, default=list))


def _cut(text: str) -> str:
    flat = text.replace("\n", "\\n")
    return flat if len(flat) <= _WIDE else f"{flat[: _WIDE - 1]}…"


def objects(event: Event) -> Iterator[Mapping[str, object]]:
    """JSON objects: one per entry of a TOKEN or MSG, one per other event.

    Entries have the fields of `lmtool chat --jsonl`. NaN and infinities become null.
    """
    base: dict[str, object] = {"time": event.time, "connection": event.connection}
    if isinstance(event, Frame):
        command, payload = _command_and_payload(event)
        for entry in payload if event.direction == "<" and isinstance(payload, list) else [payload]:
            members = entry if isinstance(entry, dict) else {"payload": entry}
            more = {name: _finite(one) for name, one in members.items() if name not in (*base, "event")}
            yield {**base, "event": command, **more}
    elif isinstance(event, Piece):
        content = event.content
        payload = content.value if isinstance(content, JsonText) else event.wire().decode("utf-8", "replace")
        yield {**base, "event": event.kind, "payload": _finite(payload)}
    else:
        yield {**base, **_facts(event)}


def _command_and_payload(frame: Frame) -> tuple[str, object]:
    """Command and payload of a frame; direction and text if it is not LMTP."""
    if isinstance(frame.content, bytes):
        return frame.direction, {"hex": frame.content.hex()}
    command, payload, readable = frame.parse()
    return (command, payload) if command is not None and readable else (frame.direction, frame.wire())


def _facts(event: Event) -> Mapping[str, object]:
    facts = {"event": kind_of(event), **facts_of(event)}
    match event:
        case Vocab():
            return {"event": "vocab", "tokens": facts_of(event)}
        case Remark():
            return {**facts, "text": event.text}
        case Request():
            body = (
                event.body.value if isinstance(event.body, JsonText) else event.wire_body().decode("utf-8", "replace")
            )
            return {**facts, "body": body}
        case Message():
            return {**facts, "direction": event.direction, "message": _finite(event.value)}
        case Other():
            return {**facts, "rest": list(event.rest)}
    return facts


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value
