"""One stream as it is observed: when it came, began, brought tokens and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.interfaces import began_at
from lmtool.types import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.interfaces import StreamHandle
    from lmtool.telemetry.request_metrics import RequestMetrics, Series


class Observation:
    """Call `token` for each of its tokens, or pieces of text, and `end` once."""

    __slots__ = ("_last", "_metrics", "_name", "_series", "_started", "handle", "key", "latency", "tokens")

    def __init__(
        self, metrics: RequestMetrics, name: str | Callable[[], str], key: str, started: float, *, latency: bool = True
    ) -> None:
        """started: when the request came; this and all times by `time.perf_counter`.

        name: its model's, as clients are shown it; where that is not known before the model is loaded, what finds it
        once the stream has brought something. latency: whether its tokens come one after the other, as those of SCORE
        and of requests that only prefill do not.
        """
        self._metrics = metrics
        self._name = name
        self._series: Series | None = None
        self._started = started
        self._last: float | None = None
        self.key = key
        """The name of its key, empty where there are no keys."""
        self.latency = latency
        self.tokens = 0
        """So far."""
        self.handle: StreamHandle | None = None
        """Of the stream, which may tell when its turn came."""

    @property
    def series(self) -> Series:
        """Where it is counted."""
        if self._series is None:
            name = self._name if isinstance(self._name, str) else self._name()
            self._series = self._metrics.series(name, self.key)
        return self._series

    def token(self, now: float) -> None:
        """A token has come."""
        self.tokens += 1
        last, self._last = self._last, now
        if last is None:
            self._begin(now)
        elif self.latency:
            self.series.gaps.observe(now - last)

    def _begin(self, now: float) -> None:
        if self.latency:
            self.series.first_tokens.observe(now - self._started)
        began = began_at(self.handle)
        if began is not None:
            self.series.queue.observe(max(0.0, began - self._started))

    def end(self, reason: str | None, usage: Usage | None, now: float) -> None:
        """It has ended. reason: None for an error; usage: as the model counts, None where it does not."""
        used = usage or Usage(0, self.tokens)
        self.series.end(reason or "error", now - self._started, used)
