"""A model made of many servers of the same one: each request goes to one of them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from lmtool.errors import ConnectError, ResourceError, UnknownModelError, UsageError
from lmtool.interfaces import refuse
from lmtool.lmtp.balancing.choice import Prefixes, choose
from lmtool.lmtp.balancing.worker import ANSWER_SECONDS, CHECK_SECONDS, Worker
from lmtool.lmtp.endpoint import SocketEndpoint, parse
from lmtool.prompt_limits import PromptLimits, widest
from lmtool.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.interfaces import Sink, StreamHandle, Unsubscribe
    from lmtool.prompt_limits import LimitsByModel
    from lmtool.types import GenerateRequest, ModelEntry, ModelInfo, ModelPhase, ScoreRequest

_ON_ITS_WAY: Sequence[ModelPhase] = ("ready", "loading", "queued", "unloading", "unloaded", "failed")

_log = logging.getLogger(__name__)


class Balancer:
    """An `interfaces.TokenModel`, `interfaces.ProgressSource` and `interfaces.Catalogue` over workers.

    Streams of a worker that is lost end with an error; it is asked again until it answers, and started again where its
    process is ours. Belongs to one event loop.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        api_key: str | None = None,
        *,
        expected: Sequence[ModelEntry] = (),
        check_seconds: float = CHECK_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """endpoints, api_key: as for `LmtpClient`. expected: what is listed as long as no worker has listed anything.

        Raises `UsageError` for an endpoint that is none, or the same one twice.
        """
        parsed = [parse(endpoint, api_key) for endpoint in endpoints]
        addresses = [endpoint.url for endpoint in parsed if isinstance(endpoint, SocketEndpoint)]
        if len(set(addresses)) < len(addresses) or not endpoints:
            raise UsageError("each worker is named once, and there is one at least", f"given: {', '.join(addresses)}")
        self._changed = asyncio.Event()
        self._progress = LoadProgress(f"{len(endpoints)} worker{'s' * (len(endpoints) > 1)}", "waiting")
        self._listeners: dict[object, Callable[[LoadProgress], None]] = {}
        self.longest_token_bytes: int | None = None
        """Bytes of the longest token of the workers' model, where its tokenizer is known here."""
        self._prefixes = Prefixes()
        self._expected = expected
        self._workers = [
            Worker(
                number,
                endpoint,
                self._worker_changed,
                self._publish,
                check_seconds=check_seconds,
                answer_seconds=answer_seconds,
            )
            for number, endpoint in enumerate(parsed)
        ]
        self._order = list(range(len(self._workers)))
        """Numbers of the workers, the one chosen longest ago first."""
        self._started = False

    @property
    def up(self) -> list[str]:
        """The workers that answer."""
        return [worker.name for worker in self._workers if worker.up]

    @property
    def limits(self) -> LimitsByModel:
        """What prompts of the workers' model may have, see `interfaces.Limited`."""
        told = (PromptLimits.of(worker.info) for worker in self._workers if worker.info is not None)
        known = [one for one in told if one is not None]
        if not known:
            return {}
        limits = widest(known)
        return {None: limits if self.longest_token_bytes is None else limits.with_text_limit(self.longest_token_bytes)}

    def streams(self) -> tuple[int, int]:
        """Streams that run on all workers, and 0: what waits, waits there."""
        return sum(worker.running for worker in self._workers), 0

    def start(self) -> None:
        """Connect to all workers; `info` does so too."""
        if not self._started:
            self._started = True
            for worker in self._workers:
                worker.start()

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream on one of the workers; see `TokenModel.submit`."""
        loads = {number: self._workers[number].running for number in self._order if self._workers[number].ready}
        number = choose(loads, self._prefixes.owners(request.prompt))
        if number is None:
            return refuse(request.stream_id, sink, ConnectError("no worker is up", "try again in a moment"))
        self._prefixes.remember(request.prompt, number)
        self._order.remove(number)
        self._order.append(number)
        return self._workers[number].submit(request, sink)

    async def info(self, model: str | None = None) -> ModelInfo:
        """What is served, as a worker tells it, once one is up; with the running streams of all.

        Raises the worker's error for a name that it does not serve, `ResourceError` with the
        reason where all of ours cannot start, and `UsageError` where the workers serve different models.
        """
        self.start()
        worker = await self._first()
        info = await worker.ask(model)
        self._check_same()
        self._publish(LoadProgress(info.model, "ready"))
        return replace(info, running=self.streams()[0] if info.running is not None else None)

    async def main(self) -> str | None:
        """The model that the workers serve, once one is up; None for many, or such as are loaded on demand."""
        self.start()
        return (await self._first()).only

    def models(self) -> list[ModelEntry]:
        """See `interfaces.Catalogue.models`: what is furthest on its way on any worker."""
        found: dict[str, ModelEntry] = {}
        for entry in chain.from_iterable(worker.models for worker in self._workers):
            found[entry.name] = min(found.get(entry.name, entry), entry, key=_far)
        return list(found.values()) or list(self._expected)

    def entry(self, name: str | None) -> ModelEntry:
        """See `interfaces.Catalogue.entry`."""
        models = self.models()
        for entry in models:
            if name in (entry.name, *entry.aliases) or (name is None and len(models) == 1):
                return entry
        problem = f"model {name!r:.200} is not served here" if name is not None else "the request names no model"
        known = f"served here: {', '.join(entry.name for entry in models)}" if models else "nothing is in memory yet"
        raise UnknownModelError(problem, known)

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:  # noqa: ARG002  # one model
        """Tell `listener` how the workers' loads proceed, see `interfaces.ProgressSource`."""
        key = object()
        if self._progress.phase not in {"ready", "failed"}:
            self._listeners[key] = listener
        listener(self._progress)
        return partial(self._unsubscribe, key)

    async def close(self) -> None:
        """Close all connections; processes of ours end."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def _first(self) -> Worker:
        """The first worker that is up. Raises `ResourceError` with the reason where none of ours can start at all."""
        while True:
            self._changed.clear()
            for worker in self._workers:
                if worker.up:
                    return worker
            failures = [worker.failure for worker in self._workers if worker.owned and not worker.was_up]
            if len(failures) == len(self._workers) and all(failures):
                assert failures[0] is not None
                raise ResourceError(failures[0].message, *failures[0].hints)
            await self._changed.wait()

    def _check_same(self) -> None:
        told = {worker.only for worker in self._workers if worker.only is not None}
        if len(told) > 1:
            raise UsageError(
                f"the workers serve different models: {', '.join(sorted(told))}", "balance servers of one model"
            )

    def _worker_changed(self, worker: Worker) -> None:
        if worker.up:
            self._compare(worker)
        else:
            self._prefixes.forget(worker.number)
        self._changed.set()

    def _compare(self, worker: Worker) -> None:
        """Warn where a worker that came up computes in another way than one that is up."""
        other = next((one for one in self._workers if one.up and one is not worker), None)
        if other is not None and (theirs := _numerics(other)) != (own := _numerics(worker)):
            _log.warning(
                "%s computes in %s, %s in %s: the same request may give other numbers",
                *(worker.name, own, other.name, theirs),
            )

    def _publish(self, progress: LoadProgress) -> None:
        if self._progress.phase == "ready":
            return
        self._progress = progress
        for listener in list(self._listeners.values()):
            listener(progress)
        if progress.phase in {"ready", "failed"}:
            self._listeners.clear()

    def _unsubscribe(self, key: object) -> None:
        self._listeners.pop(key, None)


def _far(entry: ModelEntry) -> tuple[int, float]:
    """How far a model is on its way to an answer; the least is the furthest, among equals the one used last."""
    return _ON_ITS_WAY.index(entry.phase), entry.idle_seconds or 0.0


def _numerics(worker: Worker) -> str:
    """What decides a worker's bits, as far as it tells."""
    info = worker.info
    told = () if info is None else (info.dtype, (info.device or "").partition(":")[0], info.kernels)
    return ", ".join(part or "unknown" for part in told)
