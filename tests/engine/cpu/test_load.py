"""Which checkpoints run compiled, and how their weights are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmtool.engine.backends import load_engine
from lmtool.engine.config import EngineConfig
from lmtool.engine.cpu.forward import CompiledModel
from lmtool.engine.cpu.load import compiled_shape, stored_as
from lmtool.engine.kv_cache import LayerShape
from lmtool.engine.weights import computes_bfloat16
from lmtool.errors import ResourceError


@pytest.fixture
def asked(reference):
    """What is known of the small GPT-2."""
    model = reference("gpt2")
    names = {name for name, _ in model.named_parameters()}
    return [model.config.to_dict(), type(model).__name__, names, [(LayerShape(4, 8, 8), None)] * 3]


def test_what_is_computed(asked):
    """All must fit: the class, every name, what each layer was seen to store."""
    assert compiled_shape(*asked).hidden == 32
    raw, architecture, names, layers = asked
    assert compiled_shape(raw, "MyGPT2", names, layers) is None
    assert compiled_shape(raw, architecture, names - {"transformer.wpe.weight"}, layers) is None
    assert compiled_shape(raw, architecture, names | {"transformer.extra"}, layers) is None
    assert compiled_shape(raw, architecture, names, layers[:2]) is None
    assert compiled_shape(raw, architecture, names, [(LayerShape(4, 8, 8), 7)] * 3) is None


def test_stored_as(asked):
    """As loaded where we are faster; as bytes where asked for and possible."""
    shape = compiled_shape(*asked)
    assert stored_as(torch.float32, None, shape) == torch.float32
    assert stored_as(torch.float16, None, shape) is None
    assert stored_as(torch.bfloat16, None, shape) == (None if computes_bfloat16() else torch.bfloat16)
    assert stored_as(torch.bfloat16, "int8", shape) == torch.int8
    assert stored_as(torch.float32, "int8", replace(shape, inner=50)) is None


def test_a_quantized_engine_says_so(kernels, engine_of):
    """The information about the model names the number format of its weights."""
    engine = engine_of("gpt2", quantize="int8")
    assert type(engine._runner.forward) is CompiledModel
    assert engine.info_now.dtype == "int8"


def test_what_cannot_be_quantized(checkpoint):
    """Says what it takes."""
    with pytest.raises(ResourceError, match="--quantize int8"):
        load_engine(str(checkpoint("gemma")), EngineConfig(threads=1, quantize="int8"))


def test_what_is_let_go_keeps_its_content(kernels, tmp_path):
    """Memory of a file and memory of our own may leave, and is there again when it is read."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    for tensor in (torch.from_file(str(path), size=1 << 20, dtype=torch.uint8), torch.full((1 << 20,), 7.0)):
        before = tensor.clone()
        kernels.let_go(tensor.data_ptr(), tensor.nbytes)
        assert torch.equal(tensor, before)
