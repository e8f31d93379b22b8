"""One model served by many servers: each request goes to one of them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from lmtool.errors import ConnectError, OverloadedError, ResourceError, UnknownModelError, UsageError
from lmtool.lmtp.endpoint import SocketEndpoint, parse
from lmtool.lmtp.worker import ANSWER_SECONDS, CHECK_SECONDS, Worker
from lmtool.prompt_limits import PromptLimits, widest
from lmtool.routing.prefixes import PrefixTable
from lmtool.routing.strategies import Candidate, LeastLoaded
from lmtool.streams import refuse
from lmtool.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.errors import LmtoolError
    from lmtool.interfaces import Sink, StreamHandle, Tokenizer, Unsubscribe
    from lmtool.model_entry import ModelEntry, ModelPhase
    from lmtool.prompt_limits import LimitsByModel
    from lmtool.types import GenerateRequest, ModelInfo, ScoreRequest

_PHASES: Sequence[ModelPhase] = ("ready", "loading", "queued", "unloading", "unloaded", "failed")
"""Nearest to an answer first."""

_log = logging.getLogger(__name__)


class Balancer:
    """An `interfaces.TokenModel`, `interfaces.ProgressSource` and `interfaces.Catalogue` over workers.

    Streams of a worker that is lost end with an error; it is checked until it answers again, and restarted where its
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
        """endpoints, api_key: as for `LmtpClient`. expected: the list of models until a worker has sent its own.

        Raises `UsageError` for a malformed endpoint, or the same one twice.
        """
        parsed = [parse(endpoint, api_key) for endpoint in endpoints]
        addresses = [endpoint.url for endpoint in parsed if isinstance(endpoint, SocketEndpoint)]
        if len(set(addresses)) < len(addresses) or not endpoints:
            raise UsageError("each worker is named once, and there is one at least", f"given: {', '.join(addresses)}")
        self._changed = asyncio.Event()
        self._progress = LoadProgress(f"{len(endpoints)} worker{'s' * (len(endpoints) > 1)}", "waiting")
        self._listeners: list[Callable[[LoadProgress], None]] = []
        self.own_tokenizer: Tokenizer | None = None
        """That of the workers' model, where it is at hand here: set it once the model is known."""
        self._prefixes = PrefixTable()
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
        self._strategy = LeastLoaded()
        self._started = False

    @property
    def up(self) -> list[str]:
        """The workers that answer."""
        return [worker.name for worker in self._workers if worker.up]

    @property
    def limits(self) -> LimitsByModel:
        """Limits of the prompts of the workers' model, see `interfaces.Limited`."""
        own = (PromptLimits.of(worker.info) for worker in self._workers if worker.info is not None)
        known = [limits for limits in own if limits is not None]
        if not known:
            return {}
        limits, tokenizer = widest(known), self.own_tokenizer
        return {None: limits if tokenizer is None else limits.with_text_limit(tokenizer.longest_token_bytes)}

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:  # noqa: ARG002  # one model
        """The tokenizer of the workers' model, where it is at hand here, see `interfaces.Tokenized`."""
        return self.own_tokenizer

    def streams(self) -> tuple[int, int]:
        """Streams running on all workers, and 0: those that wait do so on their worker."""
        return sum(worker.running for worker in self._workers), 0

    def start(self) -> None:
        """Connect to all workers; `info` does so too."""
        if not self._started:
            self._started = True
            for worker in self._workers:
                worker.start()

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream on one of the workers; see `TokenModel.submit`."""
        known = self._prefixes.matches(request.prompt)
        available = [worker for worker in self._workers if worker.available]
        candidates = [Candidate(one.number, one.running, known.get(one.number, 0)) for one in available]
        ordered = self._strategy.order(candidates, asyncio.get_running_loop().time())
        if not ordered:
            return refuse(request.stream_id, sink, self._unavailable())
        worker = self._workers[ordered[0].member]
        self._prefixes.add(request.prompt, worker.number)
        return worker.submit(request, sink)

    def _unavailable(self) -> LmtoolError:
        """Why no worker takes a request."""
        rests = [worker.rest_seconds for worker in self._workers if worker.up]
        if not rests:
            return ConnectError("no worker is up", "try again in a moment")
        return OverloadedError(
            "every worker that is up rests: it is overloaded, or has failed",
            f"try again in {max(min(rests), 0.1):.1f} s",
        )

    async def info(self, model: str | None = None) -> ModelInfo:
        """What is served, as one of the workers describes it once it is up; with the running streams of all.

        Raises the worker's error for a name that it does not serve, `ResourceError` with the
        reason where all of ours cannot start, and `UsageError` where the workers serve different models.
        """
        self.start()
        worker = await self._first()
        info = await worker.describe(model)
        self._check_same()
        self._publish(LoadProgress(info.model, "ready"))
        return replace(info, running=self.streams()[0] if info.running is not None else None)

    async def main(self) -> str | None:
        """The model that the workers serve, once one is up; None for many, or such as are loaded on demand."""
        self.start()
        return (await self._first()).sole_model

    def models(self) -> list[ModelEntry]:
        """See `interfaces.Catalogue.models`; of a model on several workers the one that is nearest to an answer."""
        best: dict[str, ModelEntry] = {}
        for entry in chain.from_iterable(worker.models for worker in self._workers):
            best[entry.name] = min(best.get(entry.name, entry), entry, key=_distance)
        return list(best.values()) or list(self._expected)

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
        """Report the progress of the workers' loads, see `interfaces.ProgressSource`."""
        if self._progress.phase not in {"ready", "failed"}:
            self._listeners.append(listener)
        listener(self._progress)
        return partial(self._unsubscribe, listener)

    async def load(self, name: str) -> None:
        """Have all workers load a model that they serve, see `interfaces.ModelControl.load`."""
        await self._manage(load=name)

    async def unload(self, name: str) -> None:
        """Have all workers unload a model, see `interfaces.ModelControl.unload`; where one refuses, others have not."""
        await self._manage(unload=name)

    async def _manage(self, **order: str) -> None:
        """Raises the error of a worker, of one that does not serve the model only where none does."""
        workers = [worker for worker in self._workers if worker.ready]
        if not workers:
            raise self._unavailable()
        results = await asyncio.gather(*(worker.manage(**order) for worker in workers), return_exceptions=True)
        errors = [result for result in results if result is not None]
        for error in errors:
            if len(errors) == len(workers) or not isinstance(error, UnknownModelError):
                raise error

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
            unstarted = [worker for worker in self._workers if worker.owned and not worker.ever_up]
            errors = [worker.error for worker in unstarted if worker.error is not None]
            if len(errors) == len(self._workers):
                raise ResourceError(errors[0].message, *errors[0].hints)
            await self._changed.wait()

    def _check_same(self) -> None:
        names = {worker.sole_model for worker in self._workers if worker.sole_model is not None}
        if len(names) > 1:
            raise UsageError(
                f"the workers serve different models: {', '.join(sorted(names))}", "balance servers of one model"
            )

    def _worker_changed(self, worker: Worker) -> None:
        if worker.up:
            self._compare(worker)
        else:
            self._prefixes.discard(worker.number)
        self._changed.set()

    def _compare(self, worker: Worker) -> None:
        """Warn when a worker that came up computes in another way than one that is up."""
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
        for listener in list(self._listeners):
            listener(progress)
        if progress.phase in {"ready", "failed"}:
            self._listeners.clear()

    def _unsubscribe(self, listener: Callable[[LoadProgress], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)


def _distance(entry: ModelEntry) -> tuple[int, float]:
    """How far a model is from an answer; among equals the most recently used one is nearest."""
    return _PHASES.index(entry.phase), entry.idle_seconds or 0.0


def _numerics(worker: Worker) -> str:
    """What decides the bits of a worker's results, as far as it is known."""
    info = worker.info
    parts = () if info is None else (info.dtype, (info.device or "").partition(":")[0], info.kernels)
    return ", ".join(part or "unknown" for part in parts)
