"""What runs beside a load: transformers changes torch's default dtype meanwhile, which is the whole process's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, TokenOutput
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.engine.conftest import bits

STORIES = Path(__file__).parents[2] / "data/stories260K"
SAMPLING = [
    SamplingParams(max_tokens=12, ignore_eos=True, top_logprobs=3),
    SamplingParams(max_tokens=12, temperature=1.2, seed=3, top_p=0.9, top_k=20, min_p=0.01, ignore_eos=True),
    SamplingParams(max_tokens=12, temperature=0.8, seed=4, presence_penalty=1.0, logit_bias={5: 2.0}, ignore_eos=True),
]


async def _streams(engine: Engine, seed: int) -> list[list[TokenOutput]]:
    """Streams of prompts that no other seed has, so that nothing is in the prefix cache."""
    prompts = [tuple((seed * 37 + at * 11 + number) % 400 + 5 for at in range(20)) for number in range(len(SAMPLING))]

    async def one(number: int) -> list[TokenOutput]:
        request = GenerateRequest(number, prompts[number], SAMPLING[number])
        return bits([output async for output in stream(engine, request)])

    return await asyncio.gather(*(one(number) for number in range(len(SAMPLING))))


@pytest.mark.parametrize("kernels", ["auto", "none"])
@pytest.mark.parametrize("model", [str(STORIES), str(MODEL_DIR)], ids=["stories", "embedded"])
async def test_streams_do_not_depend_on_it(model: str, kernels: str) -> None:
    """Under another default dtype streams have the same ids and logprobs, bit for bit."""
    engines = [load_engine(model, EngineConfig(threads=1, dtype="float32", kernels=kernels)) for _ in range(2)]
    try:
        expected = await _streams(engines[0], 1)
        torch.set_default_dtype(torch.bfloat16)
        try:
            found = await _streams(engines[1], 1)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found == expected
    finally:
        for engine in engines:
            engine.close()
