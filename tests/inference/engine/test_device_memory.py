"""Memory of a GPU: what keys and values get of it, and what is given back. A fake plays torch's own counters."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from lmtool.core.errors import ModelLoadError, OutOfMemoryError
from lmtool.inference.engine import engine_loader
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.device import cache_room, forgetting_frames, release
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.kv_cache import LayerShape, block_bytes, cache_blocks

GPU = torch.device("cuda:0")
GB = 1 << 30
SHAPES = [LayerShape(8, 128, 128)] * 32
"""Of a model with 8B weights."""
BLOCK = block_bytes(SHAPES, torch.bfloat16)


class Gpu:
    """What torch says of a GPU of 140 GB."""

    def __init__(self):
        self.allocated = 0
        self.unused = 0
        """Whole segments that torch keeps and can return."""
        self.pieces = 0
        """Parts of segments of which other parts are in use."""

    def mem_get_info(self, device):
        free = 140 * GB - self.allocated - self.unused - self.pieces
        return free, 140 * GB

    def memory_reserved(self, device):
        return self.allocated + self.unused + self.pieces

    def memory_allocated(self, device):
        return self.allocated

    def empty_cache(self):
        self.unused = 0


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is not there."""
    fake = Gpu()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("mem_get_info", "memory_reserved", "memory_allocated", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def blocks(reserved=1 << 28):
    """Of a model that may have any number of them."""
    return cache_blocks("m", SHAPES, 1 << 20, torch.bfloat16, GPU, EngineConfig(max_streams=256), 6, reserved)


def test_a_second_model_gets_as_much_as_the_first(gpu):
    """What the first one had, and torch has kept, is given back before the room is measured."""
    gpu.allocated = 16 * GB
    first = blocks()
    gpu.allocated, gpu.unused = 16 * GB, first * BLOCK + 16 * GB  # the first one closed, the second one loaded
    assert blocks() == first
    assert gpu.unused == 0
    assert first * BLOCK > 100 * GB


def test_room_for_steps_and_graphs(gpu):
    """A seventh of what is free is left to activations, and beside it what captured steps will need."""
    gpu.allocated = 16 * GB
    assert cache_room(GPU, GB) == int(0.85 * 124 * GB) - GB
    assert blocks(reserved=0) - blocks(reserved=GB) == pytest.approx(GB / BLOCK, abs=1)


def test_a_small_room_is_not_all_for_graphs(gpu):
    """They are given a quarter of it at most: where they do not fit, steps run without."""
    gpu.allocated = 139 * GB
    assert cache_room(GPU, 50 * GB) == int(0.85 * GB) - int(0.85 * GB) // 4


def test_pieces_are_for_steps(gpu):
    """Memory that torch cannot return counts as free, but keys and values are no larger than what is free in whole."""
    gpu.allocated, gpu.pieces = 16 * GB, 7 * GB
    assert cache_room(GPU, 0) == int(0.85 * 124 * GB)
    gpu.allocated, gpu.pieces = 100 * GB, 39 * GB
    assert cache_room(GPU, 0) == GB


def test_no_memory(gpu):
    """Where not even the fewest blocks fit, that is said."""
    gpu.allocated = 140 * GB - 6 * BLOCK
    with pytest.raises(OutOfMemoryError, match="m leaves no memory for keys and values"):
        blocks()


def test_without_a_gpu_nothing_is_asked(monkeypatch):
    """A process that uses none makes no call that would initialize it."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.delattr(torch.cuda, "empty_cache")
    release()


def test_a_lost_gpu(gpu, monkeypatch, caplog):
    """Nothing can be given back to it, which is no error of who closes a model."""

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    release()
    assert "memory of the GPU is not given back: CUDA error: an illegal memory access" in caplog.text


def test_cycles_are_collected_first(gpu, monkeypatch):
    """Tensors that only refer to each other are gone when torch is asked to return memory."""

    class Node:
        pass

    node = Node()
    node.own, known = node, weakref.ref(node)
    left = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append(known()))
    gc.disable()
    try:
        del node
        release()
    finally:
        gc.enable()
    assert left == [None]


class Weights:
    """What a load has in memory when it fails."""


def test_a_stored_failure_keeps_no_weights():
    """Neither the error that a caller stores nor what it stems from holds on to the variables of a failed load."""
    known = []

    def read():
        weights = Weights()
        known.append(weakref.ref(weights))
        raise ValueError("cut off")

    def load():
        weights = Weights()
        known.append(weakref.ref(weights))
        try:
            read()
        except ValueError as problem:
            raise ModelLoadError("it is damaged") from problem

    with pytest.raises(ModelLoadError) as caught, forgetting_frames():
        load()
    assert [reference() for reference in known] == [None, None]
    assert caught.value.message == "it is damaged"


def test_a_failed_load_is_stored_without_its_weights(checkpoint, monkeypatch):
    """`load_engine` lets go of all that it has read, whoever keeps its error."""
    known = []

    def fail(model, config):
        known.append(weakref.ref(model.runner.forward))
        raise ModelLoadError("no")

    monkeypatch.setattr("lmtool.inference.engine.transformers_loader.with_cache", fail)
    with pytest.raises(ModelLoadError) as caught:
        load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    gc.collect()
    assert known[0]() is None
    assert caught.value.message == "no"


def test_a_closed_engine_holds_nothing(checkpoint, gpu, monkeypatch):
    """Whoever still refers to it holds no keys, values or weights; torch is asked to return what it keeps."""
    returned = []
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    runner = engine._runner
    kept = [weakref.ref(runner.forward)]
    kept += [weakref.ref(part) for part in runner.cache.memory(runner.cache.layers[0][0])]
    del runner
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: returned.append([one() for one in kept]))
    engine.close()
    assert returned == [[None] * 3]


def test_the_cache_is_measured_last(checkpoint, monkeypatch):
    """When its room is measured, the weights have their final form, and transformers' model has lost them."""
    from lmtool.inference.engine import transformers_loader

    models, left = [], []
    load, measure = transformers_loader.load_model, transformers_loader.cache_blocks

    def measured(*arguments):
        left.append(sum(weight.numel() for weight in models[0].parameters()))
        return measure(*arguments)

    monkeypatch.setattr(transformers_loader, "load_model", lambda *own: models.append(load(*own)) or models[-1])
    monkeypatch.setattr(transformers_loader, "cache_blocks", measured)
    engine_loader.load_engine(str(checkpoint("llama")), EngineConfig(threads=1)).close()
    assert left == [0]
