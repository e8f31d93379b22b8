"""What was said in a case as a trace file, so that `lmtool trace` and the inspector open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.errors import FileError
from lmtool.trace.events import Close, Event, Frame, Open, Remark
from lmtool.trace.header import Header
from lmtool.trace.observing import content_of
from lmtool.trace.writer import TraceWriter

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.conformance.outcome import Outcome
    from lmtool.conformance.seen import Seen

_LONGEST = 2**16
"""Characters of a frame that are kept; a mask or padding of megabytes shows nothing."""


def keep(folder: Path, outcome: Outcome, seen: Seen) -> Path:
    """Write the trace of a case into a folder, made where it is missing; return the file. Raises `FileError`."""
    case = outcome.case
    path = folder / f"{case.role}-{case.id}.lmtp.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}") from None
    header = Header(
        by="lmtool conformance",
        at="client" if case.role == "server" else "server",
        title=f"{case.id}: {case.title}",
        transport={"kind": "websocket", "path": "/"},
        covers=case.rules,
    )
    writer = TraceWriter(path, header, overwrite=True)
    last = 0.0
    try:
        for event in events(seen, [problem.message for problem in outcome.problems]):
            writer.write(event)
            last = event.time
        writer.close(last)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    finally:
        writer.abandon()
    return path


def events(seen: Seen, problems: list[str]) -> list[Event]:
    """Everything that was said, in order of time, with the problems as marks at the end."""
    numbers: dict[str, int] = {}
    for name in [*seen.handshakes, *(message.connection for message in seen.messages), *seen.closed]:
        numbers.setdefault(name, len(numbers) + 1)
    first = {message.connection: message.time for message in reversed(seen.messages)}
    found: list[Event] = [
        Open(first.get(name, 0.0), number, {"peer": "client", "path": "/", "name": name})
        for name, number in numbers.items()
    ]
    for message in seen.messages:
        number, content = numbers[message.connection], message.content
        if len(content) > _LONGEST:
            note = f"{message.direction} {len(content)} characters, cut to {_LONGEST}"
            found.append(Remark(message.time, "note", number, note))
            content = content[:_LONGEST]
        found.append(Frame(message.time, message.direction, number, content_of(content, "py")))
    for name, end in seen.closed.items():
        found.append(Close(end.time, numbers[name], end.by, end.code, end.reason))
    found.sort(key=lambda event: event.time)
    last = found[-1].time if found else 0.0
    return [*found, *(Remark(last, "mark", 0, problem) for problem in problems)]
