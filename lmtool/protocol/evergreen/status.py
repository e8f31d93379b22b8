"""How a session ends: gRPC's status codes, and the exception that aborts a session with one of them."""

from __future__ import annotations

from enum import IntEnum

from lmtool.core.errors import (
    ConnectError,
    InvalidAnswerError,
    LmtoolError,
    OverloadedError,
    RequestError,
    ResourceError,
    TimeLimitError,
    UnknownModelError,
)
from lmtool.net.websocket_closing import cut_reason

ABORTED = 4400
"""WebSocket's close code of an aborted session; the reason is `STATUS_NAME: text`."""
QUOTE_LENGTH = 80
"""Most characters of a client's words in an error."""


class Status(IntEnum):
    """The codes of gRPC that end a session; their names go over every transport."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Abort(LmtoolError):  # noqa: N818  # the protocol's word: "the session is aborted"
    """Ends a whole session with a status and a sentence; all its nodes are dropped (rule 38)."""

    exit_code = 4
    code = "session_aborted"

    def __init__(self, status: Status, text: str, *hints: str) -> None:
        super().__init__(text, *hints)
        self.status = status

    def __reduce__(self) -> tuple[type[Abort], tuple[object, ...]]:
        return Abort, (self.status, self.message, *self.hints)

    @property
    def reason(self) -> str:
        """`STATUS_NAME: text`, as a WebSocket's close code carries it."""
        return f"{self.status.name}: {self.sentence}"


def close_reason(abort: Abort) -> str:
    """As much of an abort's reason as a WebSocket's close frame carries."""
    return cut_reason(abort.reason)


def abort_from(reason: str) -> Abort:
    """The abort that a reason `STATUS_NAME: text` tells."""
    name, _, text = reason.partition(": ")
    return Abort(Status[name] if name in Status.__members__ else Status.INTERNAL, text or reason)


def quoted(text: str) -> str:
    """A client's words as an error may repeat them: at most 80 characters."""
    return repr(text if len(text) <= QUOTE_LENGTH else text[:QUOTE_LENGTH] + "…")


def invalid(text: str, *hints: str) -> Abort:
    """What the peer sent is wrong."""
    return Abort(Status.INVALID_ARGUMENT, text, *hints)


def over_limit(name: str, limit: float, what: str) -> Abort:
    """A limit is exceeded; name: the field of `SessionLimits`."""
    return Abort(Status.RESOURCE_EXHAUSTED, f"{what}: the limit {name} is {limit:,}")


_STATUS_OF: tuple[tuple[type[LmtoolError], Status], ...] = (
    (UnknownModelError, Status.NOT_FOUND),
    (OverloadedError, Status.RESOURCE_EXHAUSTED),
    (RequestError, Status.INVALID_ARGUMENT),
    (ResourceError, Status.RESOURCE_EXHAUSTED),
    (TimeLimitError, Status.DEADLINE_EXCEEDED),
    (ConnectError, Status.UNAVAILABLE),
    (InvalidAnswerError, Status.INTERNAL),
)


def abort_of(error: LmtoolError) -> Abort:
    """The abort that an error of any room means for the session in which it happened."""
    if isinstance(error, Abort):
        return error
    status = next((status for kind, status in _STATUS_OF if isinstance(error, kind)), Status.INTERNAL)
    return Abort(status, error.message, *error.hints)
