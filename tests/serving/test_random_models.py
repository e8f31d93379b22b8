"""`serve random:NAME`, the models of `bench engine`."""

from __future__ import annotations

import pytest

import lmtool
from lmtool.core.errors import UsageError
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.random_model import SHAPES
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.config import ModelsConfig, ServiceConfig
from lmtool.serving.model_names import served
from tests.serving.running import running


def test_names() -> None:
    """Every name that `bench engine` takes is a model; any other one with `random:` is refused with these."""
    for name in SHAPES:
        assert served(f"random:{name}").source == f"random:{name}"
    with pytest.raises(UsageError) as refused:
        served("random:nothing")
    assert refused.value.message == "there is no 'random:nothing'"
    assert "random:llama-tiny" in refused.value.sentence


async def test_it_answers() -> None:
    """It is made in memory and answers prompts of ids; for texts it has no tokenizer of its own."""
    for options, text in (({}, False), ({"tokenizer": str(MODEL_DIR)}, True)):
        models = ModelsConfig.of("random:llama-tiny", **options)
        async with running(ServiceConfig(models, EngineConfig(threads=1))) as (_, url), lmtool.connect(url) as model:
            info = await model.info()
            assert (info.model, info.architecture, info.vocab_size) == ("random:llama-tiny", "LlamaForCausalLM", 512)
            assert (info.tokenizer is not None) == text
            assert len([one async for one in model.generate([3, 4, 5], max_tokens=2, ignore_eos=True)]) == 2
