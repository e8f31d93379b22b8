"""One event as text: a line for people, and objects for programs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from lmtool.lmtp import json_text
from lmtool.lmtp.json_text import JsonTextError
from lmtool.logprobs.distribution import format_probability, probability
from lmtool.trace.conversation import Began, Conversation
from lmtool.trace.events import (
    Blob,
    Close,
    Done,
    Drop,
    End,
    Frame,
    Open,
    Other,
    Parsed,
    Piece,
    Remark,
    Request,
    Response,
    Stat,
    Vocab,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.trace.conversation import Produced
    from lmtool.trace.events import Event
    from lmtool.trace.selection import Selection

_WIDE = 100


def describe(event: Event, conversation: Conversation, selection: Selection | None = None) -> Iterator[str]:
    """Lines for people: one a token, one for every other event. Call in order; follows the conversation.

    selection: which requests and outputs to tell of; then nothing else is.
    """
    for line in _lines(event, conversation, selection):
        yield line.replace("\n", "\\n")


def _lines(event: Event, conversation: Conversation, selection: Selection | None) -> Iterator[str]:
    steps = conversation.follow(event)
    for step in steps:
        if selection is not None and not selection.wants(step):
            continue
        mark, text = (
            (">", _request(step, conversation)) if isinstance(step, Began) else ("<", _output(step, conversation))
        )
        yield f"{step.time:12.6f}  {step.stream:<7} {mark} {text}"
    if not steps and selection is None:
        where = str(event.connection or "-")
        yield f"{event.time:12.6f}  {where:<7} {_other(event)}"


def _request(began: Began, conversation: Conversation) -> str:
    parts = [began.kind, began.model or "", _prompt(began, conversation)]
    known = ("model", "prompt", "messages", "stream_id", "scored", "$blob")
    parts += [f"{name} {_short(value)}" for name, value in began.payload.items() if name not in known]
    if isinstance(scored := began.payload.get("scored"), list):
        parts.append(f"scored {len(scored)} ids")
    return " · ".join(filter(None, parts))


def _prompt(began: Began, conversation: Conversation) -> str:
    prompt = began.payload.get("prompt")
    if isinstance(prompt, str):
        return _short(prompt)
    length = began.prompt_length
    if not isinstance(prompt, list):
        return "" if length is None else f"{length} in the prompt"
    texts = [conversation.text_of(token) for token in prompt[:40] if isinstance(token, int)]
    known = "".join(text for text in texts if text is not None)
    return f"{length} ids" + (f" {_short(known)}" if known else "")


def _output(step: Produced, conversation: Conversation) -> str:
    output = step.output
    if output.error is not None:
        return f"error · {_short(output.error)}"
    parts = []
    if output.token is not None:
        text = conversation.text_of(output.token) if output.text is None else output.text
        parts.append(f"{output.token:>6}" + ("" if text is None else f" {_short(text)}"))
    elif output.text:
        parts.append(_short(output.text))
    if output.logprob is not None and math.isfinite(output.logprob):
        parts.append(f"p {format_probability(probability(output.logprob))}")
    if output.finish_reason is not None:
        parts.append(output.finish_reason)
    return " · ".join(parts) or "nothing"


def _other(event: Event) -> str:  # noqa: C901 - one short case per kind reads best in one place
    match event:
        case Frame():
            wire = event.wire()
            shown = f"{len(wire)} bytes, binary" if isinstance(wire, bytes) else _cut(wire)
            return f"{event.direction} {shown}"
        case Request():
            return f"> {event.method} {event.path}"
        case Response():
            return f"< {event.status} {event.reason} · {event.headers.get('content-type', '')}".rstrip(" ·")
        case Piece():
            return f"< {_cut(event.wire().decode('utf-8', 'replace').strip())}"
        case Close():
            return f"close by {event.by} · {event.code} {event.reason}".rstrip()
        case Open() | Drop() | Stat():
            facts = " · ".join(f"{name} {_short(value)}" for name, value in event.facts.items())
            return f"{type(event).__name__.lower()} {facts}".rstrip()
        case Vocab():
            return f"vocab · {len(event.tokens)} ids"
        case Blob():
            return f"blob {event.sha256[:12]}"
        case Remark():
            return f"{event.kind} {_cut(event.text)}"
        case End():
            return f"end · {event.events} events · {event.tokens} tokens"
        case Done():
            return "< done"
        case Other():
            return f"{event.kind} {_short(event.rest)}"


def _short(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False, default=list))


def _cut(text: str) -> str:
    flat = text.replace("\n", "\\n")
    return flat if len(flat) <= _WIDE else f"{flat[: _WIDE - 1]}…"


def objects(event: Event) -> Iterator[Mapping[str, object]]:
    """JSON objects: one for each entry of a TOKEN or MSG, one for every other event.

    Entries have the fields of `lmtool chat --jsonl`. Numbers that JSON cannot write are null.
    """
    base: dict[str, object] = {"time": event.time, "connection": event.connection}
    if isinstance(event, Frame):
        command, payload = _readable(event)
        for entry in payload if event.direction == "<" and isinstance(payload, list) else [payload]:
            members = entry if isinstance(entry, dict) else {"payload": entry}
            yield {**base, "event": command, **_finite_members(members)}
    elif isinstance(event, Piece):
        content = event.content
        payload = content.value if isinstance(content, Parsed) else event.wire().decode("utf-8", "replace")
        yield {**base, "event": event.kind, "payload": _finite(payload)}
    else:
        yield {**base, **_facts(event)}


def _readable(frame: Frame) -> tuple[str, object]:
    """Command and payload of a frame, also of one with `-Infinity`; the direction and the text where it has none."""
    content = frame.content
    if isinstance(content, Parsed):
        return content.lead, content.value
    if isinstance(content, bytes):
        return frame.direction, {"hex": content.hex()}
    command, space, payload = content.partition(" ")
    try:
        return (command, json_text.load(payload)) if space else (frame.direction, content)
    except JsonTextError:
        return frame.direction, content


def _facts(event: Event) -> dict[str, object]:
    facts: dict[str, object] = {"event": type(event).__name__.lower()}
    match event:
        case Open() | Drop() | Stat():
            facts |= event.facts
        case Close():
            facts |= {"by": event.by, "code": event.code, "reason": event.reason}
        case Vocab():
            facts["tokens"] = {str(i): t if isinstance(t, str) else {"hex": t.hex()} for i, t in event.tokens.items()}
        case Blob():
            facts |= {"sha256": event.sha256, "value": event.value}
        case Remark():
            facts |= {"event": event.kind, "text": event.text}
        case End():
            facts |= {"events": event.events, "tokens": event.tokens, "sha256": event.sha256}
        case Request():
            body = event.body.value if isinstance(event.body, Parsed) else event.wire_body().decode("utf-8", "replace")
            facts |= {"method": event.method, "path": event.path, "headers": event.headers, "body": body}
        case Response():
            facts |= {"status": event.status, "reason": event.reason, "headers": event.headers}
        case Other():
            facts |= {"event": event.kind, "rest": list(event.rest)}
    return facts


def _finite_members(members: Mapping[str, object]) -> dict[str, object]:
    return {name: _finite(value) for name, value in members.items() if name not in ("time", "connection", "event")}


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value
