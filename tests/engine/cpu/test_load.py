"""Which checkpoints run compiled."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.backends import load_engine
from lmtool.engine.config import EngineConfig
from lmtool.engine.cpu.forward import CompiledModel
from lmtool.engine.cpu.load import compiled_shape
from lmtool.engine.kv_cache import LayerShape
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
