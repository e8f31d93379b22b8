"""Models behind keys: what a request becomes, and what is refused before the model sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lmtool.core.errors import AccessDeniedError, UnknownModelError
from lmtool.core.interfaces import ModelControl
from lmtool.core.model_entry import ModelEntry
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, LoadProgress, SamplingParams, ScoreRequest, TokenOutput
from lmtool.net.access.caller import Callers, current_caller
from lmtool.net.access.keyed_models import KeyedModels, keyed
from lmtool.net.access.keys import Key, KeyRing, Limits, digest_of
from tests.protocol.lmtp.harness import until
from tests.scripted_model import ScriptedModel

KEY = Key("alice", digest_of("secret"))


class Models(ScriptedModel):
    """Three models, which are one."""

    def models(self) -> list[ModelEntry]:
        """See `Catalogue`."""
        return [ModelEntry("small", ("tiny",)), ModelEntry("large"), ModelEntry("hub/large")]

    def check_name(self, model: str | None) -> None:
        """Every name will do."""

    def subscribe(self, model: str | None, listener: Any) -> Any:
        """See `ProgressSource`."""
        listener(LoadProgress(str(model), "ready"))
        return lambda: None


@contextlib.contextmanager
def asking(key: Key, now: list[float] | None = None) -> Iterator[Callers]:
    """Requests in the block come from a client with this key, over a connection."""
    callers = Callers(KeyRing((key,)), (lambda: now[0]) if now else lambda: 0.0)
    token = current_caller.set(callers.caller(key, None))
    try:
        yield callers
    finally:
        current_caller.reset(token)


async def ending(models: KeyedModels, request: GenerateRequest | ScoreRequest) -> TokenOutput:
    """The last output of a stream."""
    return [output async for output in stream(models, request)][-1]


def request(**more: Any) -> GenerateRequest:
    """A short one."""
    return replace(GenerateRequest("a", (1, 2, 3), SamplingParams(max_tokens=2)), **more)


async def test_without_a_key() -> None:
    """Nothing is changed and nothing counted."""
    model = Models()
    models = keyed(model)
    assert (await ending(models, request(model="large", priority=-5))).error is None
    assert model.requests[0].priority == -5
    assert len(models.models()) == 3
    assert (await models.info("large")).key_limits == {}


async def test_models_of_a_key() -> None:
    """By name, alias and pattern; of one that is left no name is needed; what is not there names only what is."""
    model = Models()
    models = keyed(model)
    with asking(replace(KEY, models=("small", "hub/*"))):
        for name in ("small", "tiny", "hub/large", "hub/loaded on demand"):
            assert (await ending(models, request(model=name))).error is None, name
        for name in ("large", None):
            last = await ending(models, request(model=name))
            assert last.error_code == "unknown_model"
            assert str(last.error).endswith("; served here: small, hub/large")
            with pytest.raises(UnknownModelError):
                await models.info(name)
            with pytest.raises(UnknownModelError):
                models.entry(name)
            progress: list[LoadProgress] = []
            models.subscribe(name, progress.append)
            assert [one.phase for one in progress] == ["failed"]
        assert [entry.name for entry in models.models()] == ["small", "hub/large"]
    with asking(replace(KEY, models=("large",))):
        assert (await ending(models, request())).error is None
        assert model.requests[-1].model == "large"


async def test_control_of_models() -> None:
    """Only with `admin`, and of what the key may use; there is none where the models have none."""
    assert not isinstance(keyed(Models()), ModelControl)
    orders: list[str] = []

    class Controlled(Models):
        async def load(self, name: str) -> None:
            orders.append(f"load {name}")

        async def unload(self, name: str) -> None:
            orders.append(f"unload {name}")

    models = keyed(Controlled())
    assert isinstance(models, ModelControl)
    with asking(KEY):
        for order in (models.load, models.unload):
            with pytest.raises(AccessDeniedError, match="the key alice may not"):
                await order("small")
    with asking(replace(KEY, models=("small",), admin=True)):
        await models.load("small")
        await models.unload("small")
        with pytest.raises(UnknownModelError):
            await models.unload("large")
    assert orders == ["load small", "unload small"]


async def test_priority() -> None:
    """More urgent than the key allows is refused; a request without one gets the key's."""
    model = Models()
    models = keyed(model)
    with asking(replace(KEY, priority=3)):
        for asked, used in ((0, 3), (3, 3), (7, 7)):
            assert (await ending(models, request(priority=asked))).error is None
            assert model.requests[-1].priority == used
        last = await ending(models, request(priority=2))
        assert (last.error_code, len(model.requests)) == ("invalid_request", 3)
        assert "may ask for 3 or more" in str(last.error)
        assert (await models.info("small")).key_limits == {"priority": 3}


@pytest.mark.parametrize("prompt", [(1,) * 5, "x" * 17, "ä" * 9], ids=["ids", "text", "more bytes than characters"])
async def test_long_prompts(prompt: tuple[int, ...] | str) -> None:
    """They are refused before the model sees them; what only tokenizing tells is left to it."""
    model = Models()
    models = keyed(model)
    with asking(replace(KEY, limits=Limits(prompt_tokens=4))):
        last = await ending(models, request(prompt=prompt))
        assert (last.error_code, model.requests) == ("context_overflow", [])
        assert "maximum context length is 4 tokens for this key" in str(last.error)
        assert (await ending(models, ScoreRequest("a", (1, 2), (3, 4, 5)))).error_code == "context_overflow"
        assert (await ending(models, ScoreRequest("a", (1, 2), (3, 4)))).error is None
        assert model.requests[-1].max_prompt_tokens == 4


async def test_salts() -> None:
    """A key's requests have its salt, whatever salt they have themselves; those of another key have another."""
    model = Models()
    models = keyed(model)
    for key in (KEY, replace(KEY, name="bob")):
        with asking(key) as callers:
            for salt in ("", "own"):
                await ending(models, request(cache_salt=salt))
                assert model.requests[-1].cache_salt == callers.salted(key.name, salt) != salt
    await ending(models, request(cache_salt="own"))
    assert model.requests[-1].cache_salt == "own"
    assert len({one.cache_salt for one in model.requests}) == 5


async def test_queue() -> None:
    """Streams without a token are limited by themselves; with the first token another one may come."""
    model = Models(manual=True)
    models = keyed(model)
    with asking(replace(KEY, limits=Limits(queue=1, streams=2))):
        outputs: list[TokenOutput] = []
        sink = outputs.extend
        models.submit(request(stream_id=1, sampling=SamplingParams(max_tokens=9)), sink)
        models.submit(request(stream_id=2), sink)
        await until(lambda: outputs)
        assert "queue of the key alice: 1 at once" in str(outputs.pop().error)
        model.step()
        models.submit(request(stream_id=3), sink)
        models.submit(request(stream_id=4), sink)
        await until(lambda: any(output.error for output in outputs))
        assert "streams of the key alice: 2 at once" in str(next(one.error for one in outputs if one.error))
        assert {output.stream_id for output in outputs} == {1, 4}


async def test_use_ends_with_the_stream() -> None:
    """However it ends: by itself, cancelled, refused by the model; and then nothing is kept of it."""
    model = Models(manual=True)
    models = keyed(model)
    with asking(replace(KEY, limits=Limits(streams=3, tokens_per_minute=100))) as callers:
        sinks = [[].extend for _ in range(3)]
        models.submit(request(), sinks[0])
        models.submit(request(), sinks[1]).cancel()
        models.submit(request(prompt=(10_000_000,)), sinks[2])
        own = callers._by_key["alice"]
        assert (own.streams, own.waiting, len(models._sinks)) == (3, 3, 3)
        for _ in range(3):
            model.step()
            await asyncio.sleep(0)
        assert (own.streams, own.waiting, models._sinks) == (0, 0, {})
        assert own.tokens.used == pytest.approx(3 + 3 + 1 + 2)


async def test_prefill_only() -> None:
    """Its tokens count, and it counts as no stream and no request: servers begin some by themselves."""
    models = keyed(Models())
    now = [0.0]
    with asking(replace(KEY, limits=Limits(streams=1, requests_per_minute=1, tokens_per_minute=5)), now):
        for _ in range(2):
            await ending(models, request(prefill_only=True, sampling=SamplingParams(max_tokens=0)))
        last = await ending(models, request(prefill_only=True))
        assert (last.error_code, last.retry_after) == ("rate_limit_exceeded", 24)
        now[0] += 24
        assert (await ending(models, request())).error is None


async def test_clients_have_turns_by_key() -> None:
    """All sinks of one key count as one client; those of another, and of none, do not."""
    model = Models(manual=True)
    models = keyed(model)
    clients = []
    for key in (KEY, KEY, replace(KEY, name="bob")):
        with asking(key):
            models.submit(request(), [].extend)
            clients.append(next(reversed(models._sinks.values())).client)
    assert clients[0] == clients[1] != clients[2]
