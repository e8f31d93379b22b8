"""How many blocks a model gets, and the words when there is no memory for them."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.cache_size import allocate, cache_blocks
from lmtool.engine.config import EngineConfig
from lmtool.engine.kv_cache import BLOCK_TOKENS, LayerShape
from lmtool.errors import OutOfMemoryError, ResourceError

CPU = torch.device("cpu")
SHAPES = [LayerShape(2, 8, 8)] * 3
BYTES = BLOCK_TOKENS * 3 * 2 * 16 * 4


def blocks(context=100, fewest=6, **settings):
    """For a small float32 model."""
    return cache_blocks("m", SHAPES, context, torch.float32, CPU, EngineConfig(**settings), fewest)


def test_full_contexts():
    """Room for every stream to be as long as it may, and for no more."""
    assert blocks(max_streams=5) == 5 * 7


def test_never_fewer_than_are_needed():
    """One short stream needs less than the check at load."""
    assert blocks(context=16, max_streams=1) == 6


def test_as_asked():
    """As many whole blocks as the bytes hold."""
    assert blocks(kv_cache_bytes=10 * BYTES + 5) == 10


def test_too_few():
    """Says how many bytes are needed."""
    with pytest.raises(ResourceError, match=f"it needs at least {6 * BYTES}$"):
        blocks(kv_cache_bytes=6 * BYTES - 1)


def test_more_than_any_machine_has():
    """The allocation's failure names the bytes and the flag."""
    with pytest.raises(OutOfMemoryError, match=f"no memory for the key-value cache of m: {BYTES << 40} bytes"):
        allocate("m", [(object(), shape) for shape in SHAPES], 1 << 40, torch.float32, CPU)
