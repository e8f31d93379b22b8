"""A gateway in this process on a free port, over fake upstreams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from lmtool.gateway.pools.config_reader import parse
from lmtool.gateway.pools.pool import Pool
from lmtool.net.access.policy import AccessPolicy
from lmtool.net.telemetry.spans import Tracer
from lmtool.serving.config import ModelsConfig, PoolsConfig, ServiceConfig
from lmtool.serving.service import Service
from tests.fake_upstream import FakeUpstream
from tests.serving.running import running

KEY = "canary-key"
"""Begins every key of a test: it must be in no answer and no log."""
PATIENCE = 20.0
"""Seconds after which a test has failed."""
MESSAGE = {"message": {"role": "user", "content": "Hello there"}}
CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hello there"}]}


def member(name: str, upstream: FakeUpstream, kind: str = "openai", **more: Any) -> str:
    """The YAML of a member behind a fake, as a flow mapping."""
    paths = {"openai": "/v1", "anthropic": "/v1", "cohere": "/v2", "ollama": ""}
    own = more.pop("own", "")
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    return (
        f'{{id: {name}{rest}, {kind}: {{model: model-{name}, api_key: "{KEY}-{name}", '
        f'base_url: "{upstream.url}{paths[kind]}"{own}}}}}'
    )


def pool(*members: str, name: str = "default", **more: Any) -> str:
    """The YAML of a file with one pool, which gives up after one pass."""
    rest = "".join(f"\n    {key}: {value}" for key, value in ({"retry": "{max_retries: 0}"} | more).items())
    listed = "".join(f"\n      - {one}" for one in members)
    return f"pools:\n  - id: {name}{rest}\n    models:{listed}\n"


@dataclass
class Gateway:
    """A running gateway."""

    url: str
    service: Service
    session: aiohttp.ClientSession

    @property
    def pool(self) -> Pool:
        """Its first pool."""
        assert self.service._pools is not None
        return self.service._pools.pools[0]

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, dict[str, str], Any]:
        """Status, headers in lower case, and JSON of a response; its text where that is none."""
        options = options or {"json": MESSAGE if body is None else body}
        async with self.session.post(self.url + path, **options) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            is_json = headers.get("content-type", "").startswith("application/json")
            return response.status, headers, await (response.json() if is_json else response.text())

    async def get(self, path: str) -> Any:
        """JSON of a response."""
        async with self.session.get(self.url + path) as response:
            return await response.json()


@asynccontextmanager
async def gateway(text: str, key: str | None = None, tracer: Tracer | None = None) -> AsyncIterator[Gateway]:
    """A gateway with this configuration. key: that clients must send. tracer: see `Service`."""
    pools = PoolsConfig(parse(text))
    access = AccessPolicy(key)
    config = ServiceConfig(ModelsConfig(model="auto"), access=access, pools=pools, pools_only=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with running(config, tracer=tracer) as (service, where), aiohttp.ClientSession(timeout=timeout) as session:
        yield Gateway("http" + where.removeprefix("ws").rstrip("/"), service, session)
