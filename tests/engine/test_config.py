"""Settings are values: they do not change and compare by content."""

from __future__ import annotations

import dataclasses

import pytest

from lmtool.engine.config import EngineConfig
from lmtool.errors import UsageError


def test_frozen():
    """A setting cannot be changed behind an engine's back."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().device = "cpu"


def test_equal():
    """The same settings are the same key."""
    assert {EngineConfig(threads=1): 1}[EngineConfig(threads=1)] == 1


@pytest.mark.parametrize("name", ["kernels", "quantize"])
def test_words(name):
    """A word that is not known is refused by name."""
    with pytest.raises(UsageError, match=f"{name} 'often' is not known"):
        EngineConfig(**{name: "often"})


@pytest.mark.parametrize("name", ["max_streams", "max_batch_tokens", "max_context", "kv_cache_bytes", "threads"])
def test_numbers(name):
    """A count below 1 is refused by name."""
    with pytest.raises(UsageError, match=f"{name} is 0; expected"):
        EngineConfig(**{name: 0})
