"""llama.cpp as a contestant, in an environment of its own."""

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
    async with foreign("llamacpp", settings) as worker:
        await worker.start(300)
        assert worker.about["versions"]
        assert (await worker.ask(300, do="greedy", prompts=PROMPTS, output=OUTPUT))["ids"] == right
        alone = await worker.ask(300, do="greedy", prompts=PROMPTS[1:2], output=2)
        assert alone["ids"] == [right[1][:2]]


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
async def test_other_number_formats(
    foreign: Callable[[str, dict[str, Any]], Worker], settings: dict[str, Any], dtype: str
) -> None:
    """The matrices are written in them, and it runs."""
    async with foreign("llamacpp", {**settings, "dtype": dtype}) as worker:
        await worker.start(300)
        told = await worker.ask(300, do="greedy", prompts=PROMPTS, output=OUTPUT)
    assert [len(ids) for ids in told["ids"]] == [OUTPUT] * len(PROMPTS)
