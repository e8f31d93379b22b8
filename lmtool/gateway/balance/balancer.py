"""Models served by many servers: each request goes to one of those that serve its model."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError, ResourceError, UnknownModelError, UsageError
from lmtool.core.interfaces import client_of
from lmtool.core.model_entry import find
from lmtool.core.prompt_limits import PromptLimits, widest
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.types import GenerateRequest, LoadProgress
from lmtool.gateway.balance.stream_router import WAIT_SECONDS, StreamRouter
from lmtool.gateway.balance.worker import ANSWER_SECONDS, CHECK_SECONDS, Worker
from lmtool.protocol.lmtp.client_names import ClientNames
from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
from lmtool.protocol.lmtp.load_reports import LoadReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.core.interfaces import Sink, StreamHandle, Tokenizer, Unsubscribe
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.types import ModelInfo, ScoreRequest
    from lmtool.gateway.balance.stream_router import Route

_RESUME = ResumeOptions(retries=60, backoff=0.1, longest_pause=1.0, park_after=5.0)
"""How long to wait for a worker, and when a request that ends worker after worker is given up, decides the router."""
_AGAIN = 0.25
"""Seconds after which a worker that could not describe its model is asked again, unless something changes before."""
_GRACE = 1.0
"""Seconds for which the first list of the other workers is waited for once one is up."""

_log = logging.getLogger(__name__)


class Balancer:
    """An `interfaces.TokenModel`, `ProgressSource`, `Catalogue` and `ModelControl` over workers.

    A worker that is lost is checked until it answers again, and restarted where its process is ours. Its streams go on
    meanwhile on another one with the same fingerprint, each token once, or wait until there is one; see `StreamRouter`
    and `resuming.Resuming`. Belongs to one event loop.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        api_key: str | None = None,
        *,
        expected: Sequence[ModelEntry] = (),
        load_tokenizer: Callable[[ModelInfo, PromptLimits | None], Tokenizer | None] = lambda _info, _limits: None,
        check_seconds: float = CHECK_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """endpoints, api_key: as for `LmtpClient`. expected: the list of models until a worker has sent its own.

        load_tokenizer: called in a thread with what is known of a model; its tokenizer, None where it is not here.
        wait_seconds: how long streams and questions wait for a worker that was up before. Raises `UsageError` for a
        malformed endpoint, or the same one twice.
        """
        parsed = [parse(endpoint, api_key) for endpoint in endpoints]
        addresses = [endpoint.url for endpoint in parsed if isinstance(endpoint, SocketEndpoint)]
        if len(set(addresses)) < len(addresses) or not endpoints:
            raise UsageError("each worker is named once, and there is one at least", f"given: {', '.join(addresses)}")
        self._changed = asyncio.Event()
        self._loads = LoadReports(f"{len(endpoints)} worker{'s' * (len(endpoints) > 1)}")
        self._load_tokenizer = load_tokenizer
        self._tokenizers: dict[tuple[str, str], asyncio.Task[Tokenizer | None]] = {}
        """By the model's name and the tokenizer's hash."""
        self._workers = [
            Worker(
                number,
                endpoint,
                self._worker_changed,
                self._loads.publish,
                on_described=self._compare,
                check_seconds=check_seconds,
                answer_seconds=answer_seconds,
            )
            for number, endpoint in enumerate(parsed)
        ]
        self._router = StreamRouter(self._workers, expected, wait_seconds)
        self._resuming = Resuming(self._router, _RESUME)
        self._clients = ClientNames()
        self._started = False

    @property
    def workers(self) -> Sequence[Worker]:
        """All of them, in order."""
        return self._workers

    @property
    def up(self) -> list[str]:
        """The workers that answer."""
        return [worker.name for worker in self._workers if worker.up]

    @property
    def can_answer(self) -> bool:
        """See `interfaces.Available`: where a worker answers."""
        return any(worker.up for worker in self._workers)

    def streams(self) -> tuple[int, int]:
        """Streams on all workers, of which some may wait there, and those that wait for a worker."""
        return sum(worker.running for worker in self._workers), self._router.waiting

    @property
    def resumed(self) -> int:
        """How often a stream has gone on elsewhere, or again, since the start."""
        return self._router.resumed

    def start(self) -> None:
        """Connect to all workers; `info` does so too."""
        if not self._started:
            self._started = True
            for worker in self._workers:
                worker.start()

    async def close(self) -> None:
        """Close all connections; processes of ours end."""
        self._router.close()
        for task in self._tokenizers.values():
            task.cancel()
        await asyncio.gather(*(worker.close() for worker in self._workers))

    # Streams.

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream on one of the workers; see `TokenModel.submit`.

        Its seed is not told where another worker would go on with it in another way (SPEC.md, GEN-18).
        """
        request = replace(request, client=request.client or self._clients.name(client_of(sink)))
        if isinstance(request, GenerateRequest) and request.resumable and not self._all_compute_the_same(request.model):
            request = replace(request, resumable=False)
        return self._resuming.submit(request, sink)

    def _all_compute_the_same(self, model: str | None) -> bool:
        """True if the workers of a model have one fingerprint, as far as they have described it."""
        try:
            return len({info.fingerprint for info in self._infos(self._router.route(model))}) < 2
        except UnknownModelError:
            return True

    # What is served.

    async def info(self, model: str | None = None) -> ModelInfo:
        """What is served under this name, as one of its workers describes it, once one is up; streams are those of all.

        Raises the worker's error for a name that none serves, `ResourceError` with the reason where all of ours cannot
        start, `ConnectError` where none has come back in time.
        """
        self.start()
        route, info = await self._described(model)
        self._loads.publish(LoadProgress(info.model, "ready"))
        await self._own_tokenizer(route, info)
        running = sum(worker.running for worker in route.workers)
        return replace(
            info,
            running=running if info.running is not None else None,
            fingerprint=info.fingerprint if self._all_compute_the_same(model) else None,
        )

    async def _described(self, model: str | None) -> tuple[Route, ModelInfo]:
        """Ask the workers of a model, one after another, until one describes it. Raises as `info`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._router.wait_seconds
        while True:
            self._changed.clear()
            route, refusal = self._router.route(model), None
            for worker in [worker for worker in route.workers if worker.ready]:
                try:
                    return route, await worker.describe(route.model)
                except ConnectError:
                    pass  # lost while it was asked: another one may answer, or it when it is back
                except UnknownModelError as error:
                    refusal = error
            if refusal is not None:
                raise refusal if len(self._workers) == 1 else self._router.unknown(model)
            self._check_startable()
            was_up = any(worker.ever_up for worker in route.workers)
            if was_up and loop.time() >= until:
                raise ConnectError("no worker is up", "try again in a moment")
            await self._change(_AGAIN if was_up else None)

    async def main(self) -> str | None:
        """The only model that the workers serve, once one is up; None for several, or such as are loaded on demand."""
        self.start()
        while not self.up:
            self._changed.clear()
            self._check_startable()
            await self._change(None)
        until = asyncio.get_running_loop().time() + _GRACE
        while not all(worker.checked for worker in self._workers):
            self._changed.clear()
            left = until - asyncio.get_running_loop().time()
            if left <= 0 or not await self._change(left):
                break
        models = self.models()
        return models[0].name if len(models) == 1 else None

    def models(self) -> list[ModelEntry]:
        """See `interfaces.Catalogue.models`; of a model on several workers as where it is nearest to an answer."""
        return list(self._router.models)

    def entry(self, name: str | None) -> ModelEntry:
        """See `interfaces.Catalogue.entry`."""
        entry = find(self._router.models, name)
        if entry is None:
            self._router.route(name)  # raises where one of several must be named
            raise self._router.unknown(name)
        return entry

    @property
    def limits(self) -> LimitsByModel:
        """Limits of the prompts of models that workers have described, see `interfaces.Limited`."""
        entries, limits = self._router.models, dict[str | None, PromptLimits]()
        for entry in entries:
            own = self._limits(entry)
            limits |= dict.fromkeys((entry.name, *entry.aliases), own) if own is not None else {}
        if entries and all(entry.name in limits for entry in entries):
            limits[None] = widest(limits.values())
        return limits

    def _limits(self, entry: ModelEntry) -> PromptLimits | None:
        """The widest limits of a model on its workers."""
        own = (PromptLimits.of(info) for info in self._infos(self._router.route(entry.name)))
        known = [limits for limits in own if limits is not None]
        tokenizer = self.tokenizer(entry.name)
        if not known or tokenizer is None:
            return widest(known) if known else None
        return widest(known).with_text_limit(tokenizer.longest_token_bytes)

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:
        """The tokenizer of a model that was described, where it is at hand here, see `interfaces.Tokenized`."""
        try:
            infos = self._infos(self._router.route(model))
        except UnknownModelError:
            return None
        for info in infos:
            task = self._tokenizers.get(_tokenizer_key(info))
            if task is not None and task.done() and not task.cancelled():
                return task.result()
        return None

    async def _own_tokenizer(self, route: Route, info: ModelInfo) -> None:
        """Load the tokenizer of a model, where it is here, the first time."""
        key = _tokenizer_key(info)
        task = self._tokenizers.get(key)
        if task is None:
            limits = [one for one in map(PromptLimits.of, self._infos(route)) if one is not None]
            loading = asyncio.to_thread(self._load_tokenizer, info, widest(limits) if limits else None)
            task = self._tokenizers[key] = asyncio.create_task(loading)
        await asyncio.shield(task)

    def _infos(self, route: Route) -> list[ModelInfo]:
        """What the workers of a model have told of it."""
        infos = (worker.description(route.model).info for worker in route.workers)
        return [info for info in infos if info is not None]

    # Loading and unloading.

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """Report the progress of a model's load on the workers, see `interfaces.ProgressSource`."""
        models = self._router.models
        entry = find(models, model)
        ready = bool(self.up) and (entry is None or entry.phase == "ready")
        only = len(models) < 2  # whatever a worker calls it
        return self._loads.subscribe(None if only or entry is None else entry.name, listener, ready=ready)

    async def load(self, name: str) -> None:
        """Have all workers that serve a model load it, see `interfaces.ModelControl.load`."""
        await self._manage(name, "load")

    async def unload(self, name: str) -> None:
        """Have them unload it, see `interfaces.ModelControl.unload`; where one refuses, others have not."""
        await self._manage(name, "unload")

    async def _manage(self, name: str, order: str) -> None:
        """Raises the error of a worker, of one that does not serve the model only where none does."""
        route = self._router.route(name)
        workers = [worker for worker in route.workers if worker.ready]
        if not workers:
            raise ConnectError("no worker is up", "try again in a moment")
        orders = (worker.manage(**{order: route.model or name}) for worker in workers)
        results = await asyncio.gather(*orders, return_exceptions=True)
        errors = [result for result in results if result is not None]
        for error in errors:
            if len(errors) == len(workers) or not isinstance(error, UnknownModelError):
                raise error

    # Workers.

    def _check_startable(self) -> None:
        """Raise `ResourceError` with the reason where none of our workers can start at all."""
        unstarted = [worker for worker in self._workers if worker.owned and not worker.ever_up]
        errors = [worker.error for worker in unstarted if worker.error is not None]
        if len(errors) == len(self._workers):
            raise ResourceError(errors[0].message, *errors[0].hints)

    async def _change(self, seconds: float | None) -> bool:
        """Wait for a worker to change; whether one did in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _worker_changed(self, worker: Worker) -> None:
        if not worker.up:
            self._router.discard(worker)
        else:
            for entry in worker.models:
                if entry.phase == "ready":
                    self._loads.publish(LoadProgress(entry.name, "ready"))
        self._changed.set()
        self._router.wake()

    def _compare(self, worker: Worker, info: ModelInfo) -> None:
        """Warn when a worker computes a model in another way than another one."""
        others = [one for one in self._workers if one is not worker and one.entry(info.model) is not None]
        for other in others:
            theirs = other.description(info.model).info
            if theirs is not None and (difference := _difference(worker, info, other, theirs)):
                _log.warning("%s", difference)
                return


def _tokenizer_key(info: ModelInfo) -> tuple[str, str]:
    return info.model, "" if info.tokenizer is None else info.tokenizer.sha256


def _difference(worker: Worker, info: ModelInfo, other: Worker, theirs: ModelInfo) -> str | None:
    """A sentence about two ways to compute one model, None where none is known."""
    if _numerics(info) != _numerics(theirs):
        ways = f"{worker.name} computes in {_numerics(info)}, {other.name} in {_numerics(theirs)}"
        return f"{ways}: the same request may give other numbers"
    if info.fingerprint is not None and theirs.fingerprint is not None and info.fingerprint != theirs.fingerprint:
        names = f"{worker.name} and {other.name}"
        return f"{names} have different fingerprints of {info.model}: neither goes on with streams of the other"
    return None


def _numerics(info: ModelInfo) -> str:
    """What decides the bits of a worker's results, as far as it is known."""
    parts: Iterable[str | None] = (info.dtype, (info.device or "").partition(":")[0], info.kernels)
    return ", ".join(part or "unknown" for part in parts)
