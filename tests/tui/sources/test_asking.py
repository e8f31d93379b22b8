"""Requests of the inspector's own."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lmtool.errors import RequestError, UnknownModelError, UsageError
from lmtool.trace.events import Event, Open
from lmtool.tui.sources.asking import Asking
from lmtool.tui.sources.intake import Intake
from lmtool.types import GenerateRequest, SamplingParams
from tests.lmtp.harness import serving
from tests.scripted_model import ScriptedModel
from tests.tui.sources.watching import no_tokenizer


def asking(url: str, fed: list[Event], model: str | None = None) -> Asking:
    intake = Intake(pytest.fail, at="client")
    intake.feed_to(fed.extend)
    return Asking(url, intake, itertools.count(1).__next__, model=model, find_tokenizer=no_tokenizer)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://127.0.0.1:8080/", ":8080"),
        ("localhost:81", ":81"),
        ("wss://models.example/", "models.example"),
        ("stdio:lmtool serve --stdio", "lmtool"),
    ],
)
async def test_where(url: str, shown: str) -> None:
    """A server is named as briefly as it can be."""
    assert asking(url, []).where == shown


async def test_a_malformed_endpoint() -> None:
    """What is no endpoint is refused at once."""
    with pytest.raises(UsageError):
        asking("ftp://x", [])


async def test_a_model_that_is_not_served() -> None:
    """The server's refusal is raised, and the connection let go of."""
    async with serving(ScriptedModel()) as served:
        one = asking(served.url, [], model="other")
        with pytest.raises(UnknownModelError, match="not served"):
            await one.connect()
        await one.close()


async def test_a_request_that_cannot_be_written() -> None:
    """What is no request raises, and sends nothing."""
    async with serving(ScriptedModel()) as served:
        one = asking(served.url, [])
        with pytest.raises(RequestError):
            await one.generate(GenerateRequest(0, (1,), SamplingParams(temperature=float("nan"))))
        await one.close()


async def test_each_life_of_the_connection_has_its_number() -> None:
    """After a loss the next request connects again, as connection 2."""
    fed: list[Event] = []
    async with serving(ScriptedModel()) as first:
        one = asking(first.url, fed)
        assert await one.generate(GenerateRequest(0, (1,))) == "1/2"
        await one.until_ended()
        link = await one.connect()
        await link.close()
        assert await one.generate(GenerateRequest(0, (1,))) == "2/2"
        await one.close()
        await asyncio.sleep(0)
    assert [event.connection for event in fed if isinstance(event, Open)] == [1, 2]
