"""The progress of loads, for the requests of one connection that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.interfaces import ProgressSource, Unsubscribe
    from lmtool.core.types import LoadProgress, StreamId


class LoadSubscriptions:
    """Subscribes requests to the loads of their models."""

    def __init__(self, source: ProgressSource | None, report: Callable[[str, LoadProgress, bool], None]) -> None:
        """report: called with a request's id, its model's progress, and whether the client is to hear of it."""
        self._source = source
        self._report = report
        self._subscriptions: dict[StreamId, Unsubscribe] = {}

    def add(self, stream_id: str, model: str | None) -> None:
        """Report the load's progress to a request; nothing when the model is loaded already (LOAD-2)."""
        if self._source is None or stream_id in self._subscriptions:
            return
        started = False

        def listener(progress: LoadProgress) -> None:
            nonlocal started
            started = started or progress.phase != "ready"
            self._report(stream_id, progress, started)

        self._subscriptions[stream_id] = self._source.subscribe(model, listener)

    def remove(self, stream_id: StreamId) -> None:
        """Report no more to a request; harmless for one without a load."""
        unsubscribe = self._subscriptions.pop(stream_id, None)
        if unsubscribe is not None:
            unsubscribe()

    def clear(self) -> None:
        """Report to nobody any more."""
        for stream_id in list(self._subscriptions):
            self.remove(stream_id)
