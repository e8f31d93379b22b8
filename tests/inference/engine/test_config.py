"""A setting that means nothing is refused by name."""

from __future__ import annotations

import pytest

from lmtool.core.errors import UsageError
from lmtool.inference.engine.config import EngineConfig


@pytest.mark.parametrize("name", ["kernels", "quantize"])
def test_words(name):
    """A word that is not known is refused by name."""
    with pytest.raises(UsageError, match=f"{name} 'often' is not known"):
        EngineConfig(**{name: "often"})


@pytest.mark.parametrize("name", ["max_streams", "max_batch_tokens", "max_context", "kv_cache_bytes", "threads"])
def test_numbers(name):
    """A count that means nothing is refused by name."""
    for number in (0, -1, 1 << 60):
        with pytest.raises(UsageError, match=f"{name} is {number}; expected a number from 1 to"):
            EngineConfig(**{name: number})


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "tpu"), ("device", "cuda:x"), ("device", ""), ("dtype", "int3"), ("quantize", "y")],
)
def test_names(name, value):
    """One that stands for nothing is refused before anything is loaded, with those that there are."""
    with pytest.raises(UsageError, match=f"{name} '{value}' is not known; expected"):
        EngineConfig(**{name: value})
