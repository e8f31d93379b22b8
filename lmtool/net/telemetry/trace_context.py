"""W3C Trace Context: which trace a request belongs to, by the headers `traceparent` and `tracestate`."""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_STATE = 512
"""Characters of `tracestate` that are passed on; a longer one is dropped as a whole (3.3.1.5)."""
_STATE = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The place of a request in a trace."""

    traceparent: str
    """Version 00: `00-TRACE_ID-PARENT_ID-FLAGS`, in lower-case hex."""
    tracestate: str = ""
    """What vendors add; passed on as it is."""

    @property
    def headers(self) -> dict[str, str]:
        """That say the same to the next server."""
        state = {"tracestate": self.tracestate} if self.tracestate else {}
        return {"traceparent": self.traceparent, **state}


def read_trace(headers: Iterable[tuple[str, str]]) -> TraceContext | None:
    """The trace that a request's headers name (names in lower case); None where they name none, or a malformed one.

    W3C Trace Context, 3.2 and 3.3: several `traceparent`, version ff, and ids of zeros are malformed; a later version
    is read as 00.
    """
    pairs = [(name, value.strip()) for name, value in headers if name in {"traceparent", "tracestate"}]
    parents = [value for name, value in pairs if name == "traceparent"]
    match = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None or match[1] == "ff" or not int(match[2], 16) or not int(match[3], 16):
        return None
    if match[1] == "00" and match[5]:
        return None
    state = ",".join(value for name, value in pairs if name == "tracestate" and value)
    usable = len(state) <= _MAX_STATE and _STATE.fullmatch(state) is not None
    return TraceContext(f"00-{match[2]}-{match[3]}-{match[4]}", state if usable else "")


current_trace: ContextVar[TraceContext | None] = ContextVar("current_trace", default=None)
"""The trace of the request, or of the connection, that is being answered; None: it named none."""


@contextmanager
def within_trace(trace: TraceContext | None) -> Iterator[None]:
    """What the block begins is part of this trace; None changes nothing."""
    if trace is None:
        yield
        return
    token = current_trace.set(trace)
    try:
        yield
    finally:
        current_trace.reset(token)
