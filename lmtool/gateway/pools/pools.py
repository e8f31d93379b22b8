"""All pools of a server, by name: a `TokenModel`, beside the models that the server has itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.core.errors import ResourceError, UnknownModelError
from lmtool.core.interfaces import Available, current_limits, tokenizer_of
from lmtool.core.metrics import MetricFamily
from lmtool.core.model_entry import ModelEntry
from lmtool.core.streams import refuse
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.gateway.pools.cache import AnswerCache
from lmtool.gateway.pools.config import DEFAULT_POOL, HttpTarget, LitellmTarget, LmtpTarget
from lmtool.gateway.pools.http_backend import HttpBackend, HttpClient
from lmtool.gateway.pools.member import Member
from lmtool.gateway.pools.pool import Pool
from lmtool.gateway.pools.pool_stream import PoolStream
from lmtool.net.access.caller import may_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.core.interfaces import (
        Catalogue,
        ProgressSource,
        Sink,
        StreamHandle,
        Tokenizer,
        TokenModel,
        Unsubscribe,
        UpstreamTap,
    )
    from lmtool.core.prompt_limits import LimitsByModel
    from lmtool.core.types import GenerateRequest, ScoreRequest
    from lmtool.gateway.pools.backend import Backend
    from lmtool.gateway.pools.config import GatewayConfig, MemberConfig, PoolConfig
    from lmtool.net.telemetry.telemetry import Telemetry
    from lmtool.protocol.lmtp.endpoint import Endpoint


class OwnModels:
    """The models that a server has beside its pools, as far as there are any."""

    def __init__(self, model: TokenModel, catalogue: Catalogue, progress: ProgressSource) -> None:
        self.model = model
        self.catalogue = catalogue
        self.progress = progress


class Pools:
    """See `TokenModel`, `Catalogue`, `ProgressSource`, `Limited` and `Tokenized`. Belongs to one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        own: OwnModels | None = None,
        local: Endpoint | None = None,
        tap: UpstreamTap | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """own: models in this process, which `local` members stand for; local: else the endpoint that they are behind.

        tap: shown every exchange with a provider. telemetry: see `Pool`. Raises `FileError` for a cache that cannot be
        opened.
        """
        self._own = own
        self._local = local
        self._telemetry = telemetry
        self._client = HttpClient(tap)
        self._pools: dict[str, Pool] = {}
        self._retired: list[Member] = []
        """Members that a new configuration has left out, whose calls may still run."""
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Change to another configuration. Members that are the same keep their health and their calls."""
        pools = {one.id: self._pool(one) for one in config.pools}
        kept = {id(member) for pool in pools.values() for member in pool.members}
        before = [member for pool in self.pools for member in pool.members]
        self._retired += [member for member in before if id(member) not in kept]
        for pool in self._pools.values():
            if pool.cache is not None and pools.get(pool.id, pool).cache is not pool.cache:
                pool.cache.close()
        self._pools = pools

    def prepare(self) -> None:
        """Begin to import what the first call of a provider needs; needs a running event loop."""
        self._client.prepare()

    def _pool(self, config: PoolConfig) -> Pool:
        old = self._pools.get(config.id)
        if old is not None and old.config == config:
            return old
        before = () if old is None else old.members
        members = [
            next((member for member in before if member.config == one), None) or Member(one, self._backend(one))
            for one in config.members
        ]
        cache = None if config.cache is None else AnswerCache(config.cache, config)
        return Pool(config, members, cache, telemetry=self._telemetry)

    def _backend(self, config: MemberConfig) -> Backend:
        target = config.target
        if isinstance(target, HttpTarget):
            return HttpBackend(config, target, self._client)
        if isinstance(target, LitellmTarget):
            from lmtool.gateway.pools.litellm_backend import LitellmBackend

            return LitellmBackend(config, target)
        from lmtool.gateway.pools.model_backend import ModelBackend
        from lmtool.protocol.lmtp.client import LmtpClient

        if not isinstance(target, LmtpTarget) and self._own is not None:
            return ModelBackend(config, self._own.model)
        endpoint: str | Endpoint | None = target.endpoint if isinstance(target, LmtpTarget) else self._local
        key = target.key if isinstance(target, LmtpTarget) else None
        if endpoint is None:
            raise ResourceError(
                f"model {config.id} is local, and there is no local model here", "use lmtp in its place"
            )
        client = LmtpClient(endpoint, api_key=None if key is None else key.secret.reveal())
        return ModelBackend(config, client, client)

    @property
    def pools(self) -> Sequence[Pool]:
        """In the order of the configuration."""
        return list(self._pools.values())

    @property
    def can_answer(self) -> bool:
        """See `Available`: where a member may be called, or a model of the server itself can answer."""
        if self._own is not None and isinstance(self._own.model, Available) and self._own.model.can_answer:
            return True
        return any(member.health.available(pool.clock()) for pool in self.pools for member in pool.members)

    def pool(self, name: str | None) -> Pool | None:
        """The pool of this name; without one the only pool or that named default, unless there are models beside it."""
        if name is None and self._own is None:
            return next(iter(self._pools.values())) if len(self._pools) == 1 else self._pools.get(DEFAULT_POOL)
        return self._pools.get(name or "")

    @property
    def visible(self) -> Sequence[Pool]:
        """Those that the key of the current request may use."""
        return [pool for pool in self.pools if may_use(pool.id)]

    def need_pool(self, name: str | None) -> Pool:
        """The pool of this name. Raises `UnknownModelError`, also where the current request's key may not use it."""
        pool = self.pool(name)
        if pool is None or not may_use(pool.id):
            raise self._unknown(name)
        return pool

    def _unknown(self, name: str | None) -> UnknownModelError:
        problem = f"there is no pool {name!r:.200}" if name is not None else "the request names no pool"
        return UnknownModelError(problem, f"pools here: {', '.join(pool.id for pool in self.visible)}")

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel.submit`."""
        pool = self.pool(request.model)
        if pool is not None:
            return PoolStream(pool, request, sink)
        if self._own is None:
            return refuse(request.stream_id, sink, self._unknown(request.model))
        return self._own.model.submit(request, sink)

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel.info`."""
        pool = self.pool(model)
        if pool is not None:
            constructor = f"Pool({pool.id!r}: {', '.join(member.id for member in pool.members)})"
            return ModelInfo(pool.id, constructor, "gateway", chat_template=True, text_only=True)
        if self._own is None:
            raise self._unknown(model)
        return await self._own.model.info(model)

    def models(self) -> list[ModelEntry]:
        """See `Catalogue.models`: the pools, then the models."""
        own = [] if self._own is None else self._own.catalogue.models()
        return [*(ModelEntry(pool.id) for pool in self.pools), *own]

    def entry(self, name: str | None) -> ModelEntry:
        """See `Catalogue.entry`."""
        pool = self.pool(name)
        if pool is not None:
            return ModelEntry(pool.id)
        if self._own is None:
            raise self._unknown(name)
        return self._own.catalogue.entry(name)

    def subscribe(self, model: str | None, listener: Callable[[LoadProgress], None]) -> Unsubscribe:
        """See `ProgressSource.subscribe`; pools are always ready."""
        if self.pool(model) is None and self._own is not None:
            return self._own.progress.subscribe(model, listener)
        listener(LoadProgress(model or "", "ready"))
        return lambda: None

    @property
    def limits(self) -> LimitsByModel:
        """See `Limited`: of the server's own models."""
        return {} if self._own is None else current_limits(self._own.model)

    def tokenizer(self, model: str | None = None) -> Tokenizer | None:
        """See `Tokenized`: of the server's own models."""
        return None if self._own is None or self.pool(model) is not None else tokenizer_of(self._own.model, model)

    def metrics(self) -> Iterable[MetricFamily]:
        """Calls, tokens and costs of every member."""
        labelled = [(f'pool="{pool.id}",model="{member.id}"', member) for pool in self.pools for member in pool.members]
        yield MetricFamily(
            "pool_requests_total",
            "counter",
            "Requests to a pool, those answered from its cache included.",
            [(f'{{pool="{pool.id}"}}', pool.requests) for pool in self.pools],
        )
        yield MetricFamily(
            "pool_calls_total",
            "counter",
            "Calls of the members of pools by outcome.",
            [
                (f'{{{labels},outcome="{kind}"}}', count)
                for labels, member in labelled
                for kind, count in sorted(member.totals.outcomes.items())
            ],
        )
        for name, sentence, field in (
            ("pool_prompt_tokens_total", "Tokens of prompts, as members count them.", "prompt_tokens"),
            ("pool_response_tokens_total", "Tokens of answers, as members count them.", "response_tokens"),
            ("pool_cost_total", "Costs by the prices of the configuration.", "cost"),
        ):
            yield MetricFamily(
                name, "counter", sentence, [(f"{{{labels}}}", getattr(m.totals, field)) for labels, m in labelled]
            )
        rests = [
            (f'{{pool="{pool.id}",model="{member.id}"}}', round(member.health.rest_seconds(pool.clock()), 3))
            for pool in self.pools
            for member in pool.members
        ]
        yield MetricFamily("pool_rest_seconds", "gauge", "How long a member still rests.", rests)

    async def close(self) -> None:
        """Close all connections and caches."""
        members = [*self._retired, *(member for pool in self.pools for member in pool.members)]
        await asyncio.gather(*(member.backend.close() for member in members))
        for pool in self.pools:
            if pool.cache is not None:
                pool.cache.close()
        await self._client.close()
