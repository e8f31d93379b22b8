"""vLLM as a contestant, in an environment of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lmtool.bench.worker import Worker
from tests.bench.peers.conftest import OUTPUT, PROMPTS


@pytest.mark.peer
async def test_its_greedy_ids_are_transformers_own(
    foreign: Callable[[str, dict[str, Any]], Worker], settings: dict[str, Any], right: list[list[int]]
) -> None:
    """Of several prompts at once, and of one alone."""
    async with foreign("vllm", settings) as worker:
        await worker.start(300)
        assert worker.about["versions"]
        assert (await worker.ask(300, do="greedy", prompts=PROMPTS, output=OUTPUT))["ids"] == right
        alone = await worker.ask(300, do="greedy", prompts=PROMPTS[1:2], output=2)
        assert alone["ids"] == [right[1][:2]]
