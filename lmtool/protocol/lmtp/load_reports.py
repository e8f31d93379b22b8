"""How the loads of workers' models go, for those who subscribed to one of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.interfaces import Unsubscribe

    Listener = Callable[[LoadProgress], None]

_OVER = frozenset({"ready", "failed"})


class _Subscription(NamedTuple):
    model: str | None
    listener: Listener


class LoadReports:
    """Passes progress on to the subscribers of its model, until the load is over; see `interfaces.ProgressSource`."""

    def __init__(self, title: str) -> None:
        """title: what is waited for as long as no model is known."""
        self._title = title
        self._latest: dict[str, LoadProgress] = {}
        self._subscriptions: list[_Subscription] = []

    def subscribe(self, model: str | None, listener: Listener, *, ready: bool) -> Unsubscribe:
        """Report the load of a model, None for any; call `listener` now, with `ready` for the only time."""
        if ready:
            listener(LoadProgress(model or self._title, "ready"))
            return lambda: None
        subscription = _Subscription(model, listener)
        self._subscriptions.append(subscription)
        listener(self._latest.get(model or "", LoadProgress(model or self._title, "waiting")))
        return partial(self._unsubscribe, subscription)

    def publish(self, progress: LoadProgress) -> None:
        """Report progress."""
        over = progress.phase in _OVER
        for name in (progress.model, ""):  # a load of any model is one of those that are waited for without a name
            self._latest[name] = progress
            if over:
                del self._latest[name]
        for subscription in list(self._subscriptions):
            if subscription.model in (None, progress.model):
                if over:
                    self._unsubscribe(subscription)
                subscription.listener(progress)

    def _unsubscribe(self, subscription: _Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
