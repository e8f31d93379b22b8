"""What a server of ours records of those that it calls: HTTP exchanges, with the headers that hold no secret."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.net.access.credentials import secrets_of
from lmtool.trace.connection_tap import ConnectionTap
from lmtool.trace.http_stream import Data, Head, Last

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lmtool.trace.events import Event
    from lmtool.trace.http_stream import Part

ALLOWED = frozenset(
    {"accept", "anthropic-version", "content-type", "date", "retry-after", "retry-after-ms", "server", "user-agent"}
    | {"x-request-id", "request-id"}
)
"""Headers that are recorded. A provider's query may hold a key, so paths are recorded without it."""


class UpstreamTap:
    """See `interfaces.UpstreamTap`. Nothing here raises."""

    def __init__(
        self, next_number: Callable[[], int], emit: Callable[[int, Iterable[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._next = next_number
        self._emit = emit
        self._clock = clock

    def begin(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamExchange:
        """A request is sent."""
        number = self._next()
        parts = urlsplit(url)
        head = Head(b"", (method, parts.path or "/", "HTTP/1.1"), (("host", parts.netloc), *_allowed(headers)))
        secrets = secrets_of([(name.lower(), value) for name, value in headers.items()], f"?{parts.query}")
        exchange = UpstreamExchange(number, self._emit, self._clock, secrets)
        exchange.request([head, Data(b"", body), Last()])
        return exchange


class UpstreamExchange:
    """See `interfaces.UpstreamExchange`."""

    def __init__(
        self,
        number: int,
        emit: Callable[[int, Iterable[Event]], None],
        clock: Callable[[], float],
        secrets: Iterable[bytes] = (),
    ) -> None:
        """secrets: keys that are shown to the provider, which may repeat them."""
        self._number = number
        self._emit = emit
        self._clock = clock
        self._tap = ConnectionTap(number, "msgspec")
        self._tap.secrets.update(secrets)
        self._begun = False

    def request(self, parts: list[Part]) -> None:
        """The whole request."""
        self._emit(self._number, self._tap.request_parts(self._clock(), parts))

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The status and headers of the answer."""
        known = {entry.value: entry.phrase for entry in HTTPStatus}
        start = ("HTTP/1.1", str(status), known.get(status, ""))
        self._begun = True
        self._answer([Head(b"", start, _allowed(headers))])

    def data(self, data: bytes) -> None:
        """More of the answer's body."""
        self._answer([Data(b"", data)])

    def end(self, *, complete: bool) -> None:
        """The exchange is over. complete: whether the answer came to its end."""
        if complete and self._begun:
            self._answer([Last()])
        self._emit(self._number, self._tap.end(self._clock(), "client" if complete else "server"))

    def _answer(self, parts: list[Part]) -> None:
        self._emit(self._number, self._tap.response_parts(self._clock(), parts))


def _allowed(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in headers.items() if name.lower() in ALLOWED)
