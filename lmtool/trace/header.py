"""The first line of a trace: what was recorded, where, and how to check it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.trace.content import STYLES, style_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.trace.content import Style

VERSION = 1
"""Of the format; readers refuse any other."""

Times: TypeAlias = Literal["measured", "numbered"]


class HeaderError(ValueError):
    """The first line is no header of this format; the message says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a trace says of itself (FORMAT.md, "Header"). Every field may be missing."""

    created: str | None = None
    """UTC, such as `2026-11-20T22:00:00Z`."""
    by: str | None = None
    """The program that wrote the file."""
    at: str | None = None
    """Where it listened: `proxy`, `server` or `client`."""
    title: str | None = None
    transport: Mapping[str, object] = field(default_factory=dict)
    """`kind` (`websocket`, `http`, `stdio`), `path`, `max_frame` in bytes."""
    model: Mapping[str, object] = field(default_factory=dict)
    """`name`, `vocab_size`, `eos`, `tokenizer`."""
    run: Mapping[str, object] = field(default_factory=dict)
    """`device`, `dtype`, `seed`."""
    json: Style = "py"
    """The style of parsed content that does not name its own."""
    times: Times = "measured"
    """`numbered`: times are event numbers / 1000 and mean nothing."""
    redacted: tuple[str, ...] = ()
    """What was left out: `headers`, `prompt`, `text`."""
    verify: Mapping[str, object] = field(default_factory=dict)
    """How to compare: `level`, `tol_logprob`, ..."""
    covers: tuple[str, ...] = ()
    """Ids of the rules that this trace shows."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Members that this version does not know; kept."""


_KNOWN = {f.name for f in fields(Header)} - {"extra"}
_EMPTY = Header()


def to_json(header: Header) -> dict[str, object]:
    """The header as the object to write; what is empty is left out, the style never is."""
    value: dict[str, object] = {"lmtp_trace": VERSION}
    for f in fields(Header):
        if f.name == "json" or (f.name != "extra" and getattr(header, f.name) != getattr(_EMPTY, f.name)):
            value[f.name] = getattr(header, f.name)
    return {**value, **header.extra}


def from_json(value: object) -> Header:
    """The header of what the first line holds. Raises `HeaderError`."""
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
