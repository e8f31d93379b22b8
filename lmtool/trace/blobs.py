"""Large values, taken out of frames and put back: a mask the size of a vocabulary is kept once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace import styles
from lmtool.trace.events import Blob, Frame, Parsed, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lmtool.trace.events import Event

LARGE = 8192
"""Characters of JSON above which a member of a payload becomes a blob."""


def take_out(parsed: Parsed, keep: Callable[[str, object], None]) -> Parsed:
    """The same content with references in place of its large members.

    Looks at the members of the payload and, where that is a list, of its entries. keep: called with the hash and the
    value of each.
    """
    if isinstance(parsed.value, list):
        return Parsed(parsed.lead, [_lighter(entry, parsed, keep) for entry in parsed.value], parsed.style)
    return Parsed(parsed.lead, _lighter(parsed.value, parsed, keep), parsed.style)


def _lighter(entry: object, parsed: Parsed, keep: Callable[[str, object], None]) -> object:
    if not isinstance(entry, dict):
        return entry
    light = dict(entry)
    for name, member in entry.items():
        if not isinstance(member, dict | list | str):
            continue
        text = styles.write(member, parsed.style)
        if len(text) > LARGE:
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            keep(sha256, member)
            light[name] = {"$blob": sha256}
    return light


class BlobKeeper:
    """Takes large values out of events, each of them once a trace."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def lighten(self, event: Event) -> Iterator[Event]:
        """The event with references in place of large values; before it, the blobs it is the first to refer to."""
        content = event.content if isinstance(event, Frame) else event.body if isinstance(event, Request) else None
        if not isinstance(content, Parsed) or not isinstance(event, Frame | Request):
            yield event
            return
        new: dict[str, object] = {}
        light = take_out(content, new.__setitem__)
        for sha256, value in new.items():
            if sha256 not in self._given:
                self._given.add(sha256)
                yield Blob(event.time, 0, sha256, value)
        yield replace(event, content=light) if isinstance(event, Frame) else replace(event, body=light)


def put_back(parsed: Parsed, value_of: Callable[[str], object]) -> Parsed:
    """The content as it was sent: each reference becomes the value that `value_of` gives for its hash."""
    if isinstance(parsed.value, list):
        return Parsed(parsed.lead, [_whole(entry, value_of) for entry in parsed.value], parsed.style)
    return Parsed(parsed.lead, _whole(parsed.value, value_of), parsed.style)


def _whole(entry: object, value_of: Callable[[str], object]) -> object:
    if not isinstance(entry, dict):
        return entry
    return {name: value_of(sha) if (sha := reference(member)) else member for name, member in entry.items()}


def reference(value: object) -> str | None:
    """The hash that a reference names; None for any other value."""
    sha256 = value.get("$blob") if isinstance(value, dict) and len(value) == 1 else None
    return sha256 if isinstance(sha256, str) else None


def references(event: Event) -> list[str]:
    """The hashes that an event's content refers to."""
    if isinstance(event, Blob):
        return []
    content = event.content if isinstance(event, Frame) else event.body if isinstance(event, Request) else None
    if not isinstance(content, Parsed):
        return []
    entries = content.value if isinstance(content.value, list) else [content.value]
    members = [member for entry in entries if isinstance(entry, dict) for member in entry.values()]
    return [sha for member in members if (sha := reference(member))]
