"""Large values, taken out of frames and put back: a mask the size of a vocabulary is kept once (blobs in FORMAT.md)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace.content import JsonText, write_json
from lmtool.trace.events import Blob, Frame, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lmtool.trace.events import Event

LARGE = 8192
"""Characters of JSON above which a member of a payload becomes a blob."""


class LargeValues:
    """Takes large values out of events, each of them once a trace."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def take_out(self, event: Event) -> Iterator[Event]:
        """The event with references in place of large values; before it, the blobs it is the first to refer to.

        Looks at the members of a payload and, where that is a list, of its entries.
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
    """The event as it was sent: each reference becomes the value that `value_of` gives for its hash."""
    content = _json_of(event)
    if content is None:
        return event
    return _with_content(event, _with_members(content, lambda one: value_of(sha) if (sha := reference(one)) else one))


def reference(value: object) -> str | None:
    """The hash that a reference names; None for any other value."""
    sha256 = value.get("$blob") if isinstance(value, dict) and len(value) == 1 else None
    return sha256 if isinstance(sha256, str) else None


def references(event: Event) -> list[str]:
    """The hashes that an event's content refers to."""
    return [sha for member in _members(event) if (sha := reference(member))]


def may_be_large(event: Event) -> bool:
    """Whether an event may hold large values, judged without writing it again."""
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
    """A reference for a large member, which is added to `large` by its hash; any other member."""
    if isinstance(member, dict | list | str):
        text = write_json(member, content.style)
        if len(text) > LARGE:
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            large[sha256] = member
            return {"$blob": sha256}
    return member
