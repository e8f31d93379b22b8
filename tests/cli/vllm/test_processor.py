"""Logits processors of third parties inside vLLM, by entry points of vLLM's own environment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool import constraint
from lmtool.interfaces import TokenModel, stream
from lmtool.lmtp.client import LmtpClient
from lmtool.types import GenerateRequest, NamedProcessor, SamplingParams, TokenOutput
from tests.cli.vllm.conftest import over_vllm_with
from tests.plugin import install

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """With a package on the path that brings some."""
    folder = install(tmp_path_factory.mktemp("plugin"))
    yield from over_vllm_with(start_server, tiny_text, PYTHONPATH=str(folder))


async def collect(model: TokenModel, request: GenerateRequest) -> list[TokenOutput]:
    async with asyncio.timeout(60):
        return [output async for output in stream(model, request)]


async def test_they_change_what_is_drawn(server: ServerProcess) -> None:
    """Alone, one after the other, under a constraint, which they cannot break; an error ends its own stream only."""

    def asked(name: str, *named: NamedProcessor, regex: str | None = None) -> GenerateRequest:
        held = None if regex is None else constraint.regex(regex)
        sampling = SamplingParams(max_tokens=12)
        return GenerateRequest(name, (5, 6), sampling, text=True, constraint=held, logits_processors=named)

    louder = NamedProcessor("louder", {"ids": [40, 41, 42, 2]})
    requests = [
        asked("alone"),
        asked("louder", louder),
        asked("two", louder, NamedProcessor("louder", {"ids": [50]})),
        asked("held", louder, regex="[0-9]{4}"),
        asked("broken", NamedProcessor("broken")),
        asked("stuck", NamedProcessor("only", {"token": 40}), regex="[0-9]{4}"),
        asked("unknown", NamedProcessor("loud")),
        asked("refused", NamedProcessor("only", {"token": "x"})),
    ]
    async with LmtpClient(server.url) as client:
        alone = await collect(client, requests[0])
        answers = await asyncio.gather(*(collect(client, one) for one in requests))
    by_name = {str(one.stream_id): given for one, given in zip(requests, answers, strict=True)}
    assert [output.token for output in by_name["alone"]] == [output.token for output in alone]
    assert [output.token for output in by_name["louder"]] == [40, 41, 42, 2]
    assert [output.token for output in by_name["two"]][1:] == [41, 42, 2]
    assert re.fullmatch("[0-9]{4}", "".join(output.text or "" for output in by_name["held"]))
    assert "broken failed: ValueError" in str(by_name["broken"][-1].error)
    assert len(by_name["broken"]) == 3
    assert "left no token" in str(by_name["stuck"][-1].error)
    assert "there is no logits processor 'loud'; installed:" in str(by_name["unknown"][-1].error)
    assert "refuses its arguments" in str(by_name["refused"][-1].error)
