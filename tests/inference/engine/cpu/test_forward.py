"""The compiled pass gives transformers' logits; test_model_runner and test_batch_invariance run it in the engine."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import ResourceError
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.forward import CompiledForward
from lmtool.inference.engine.decoder import decoder_config
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.kv_cache import KVCache
from lmtool.inference.engine.model_runner import BlockAttention, build
from lmtool.inference.engine.plan import Plan, Sequence, Span

CPU = torch.device("cpu")
LENGTH = 45


@pytest.fixture
def kernels(each_build):
    """Of this processor and of lesser ones."""
    return each_build


@pytest.fixture
def scored(kernels, reference):
    """Logits of a text of 45 ids in pieces of these lengths, each a step of its own, with weights stored as `dtype`."""

    def run(architecture, pieces, dtype=torch.float32):
        model = reference(architecture)
        raw, weights = model.config.to_dict(), dict(model.named_parameters())
        config = decoder_config(raw)
        rotary = dict(model.named_buffers()).get("model.rotary_emb.inv_freq")
        with torch.inference_mode():
            forward = CompiledForward(kernels, config, weights, rotary, 64, dtype)
            cache = KVCache([(layer, config.layer_shape) for layer in forward.layers], 4, forward.cache_dtype, CPU)
            cache.clear(torch.arange(5))
            ids = list(range(3, 4 + LENGTH))
            sequence = Sequence(1, ids, prompt_length=1, max_length=len(ids), scoring=True)
            sequence.blocks = [2, 4, 1]
            parts, start = [], 0
            for piece in pieces:
                batch = build(Plan(spans=[Span(sequence, start, piece)]), 64, 1, CPU)
                parts.append(forward.logits(batch, BlockAttention(cache, batch.slots, batch.groups)))
                start += piece
            expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
        return torch.cat(parts), expected

    return run


@pytest.mark.parametrize(
    "architecture", ["llama", "llama-tied", "llama3-rope", "mistral", "qwen2", "qwen3", "gpt2", "gpt2-packed"]
)
@pytest.mark.parametrize("pieces", [[LENGTH], [1] * LENGTH, [20, 1, 1, 23]])
def test_same_logits(architecture, pieces, scored):
    """Prefill, decode and both by turns, windows shorter than the text: transformers' logits within 1e-4."""
    ours, theirs = scored(architecture, pieces)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "mistral", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("pieces", [[LENGTH], [20, 1, 1, 23]])
def test_bfloat16(architecture, pieces, scored):
    """Weights in bfloat16: within 5 % of the largest of transformers' logits in float32, half of them within 1 %."""
    ours, theirs = scored(architecture, pieces, torch.bfloat16)
    off = (ours - theirs).abs() / theirs.abs().max()
    assert float(off.max()) < 0.05
    assert float(off.median()) < 0.01


@given(
    cuts=st.sets(st.integers(1, LENGTH - 1)),
    architecture=st.sampled_from(["llama", "mistral", "gpt2"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.int4]),
)
@example(cuts=set(range(1, LENGTH)), architecture="gpt2", dtype=torch.float32)  # a key head with one query
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_bits_however_it_is_cut(cuts, architecture, dtype, scored):
    """Which positions a step computes changes no number."""
    ends = [0, *sorted(cuts), LENGTH]
    pieces = [end - start for start, end in itertools.pairwise(ends)]
    assert torch.equal(scored(architecture, pieces, dtype)[0], scored(architecture, [LENGTH], dtype)[0])


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_int8(architecture, scored):
    """Quantized logits lie along the exact ones."""
    ours, theirs = scored(architecture, [30, 15], torch.int8)
    similarity = torch.cosine_similarity(ours, theirs)
    assert float(similarity.mean()) > 0.995
    assert float(similarity.min()) > 0.97


@pytest.mark.parametrize(("architecture", "least"), [("llama-packed", 0.9), ("gpt2", 0.9), ("gpt2-packed", 0.97)])
def test_int4(architecture, least, scored):
    """Quantized logits lie along the exact ones, less closely than int8's; trained models: see test_accuracy.py."""
    ours, theirs = scored(architecture, [30, 15], torch.int4)
    assert float(torch.cosine_similarity(ours, theirs).mean()) > least


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_quantized_engine_says_so(kernels, engine_of, quantize):
    """The information about the model names the number format of its weights."""
    engine = engine_of("gpt2", quantize=quantize)
    assert type(engine._runner.forward) is CompiledForward
    assert engine.info_now.dtype == quantize


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"dtype": "float32"}, torch.float32),
        ({"dtype": "bfloat16"}, torch.float16),
        ({"quantize": "int8"}, torch.float16),
        ({"quantize": "int4"}, torch.float16),
    ],
)
def test_how_keys_and_values_are_stored(own_kernels, engine_of, chosen, expected):
    """As exactly as the weights are worth."""
    assert engine_of("llama", **chosen)._runner.cache.dtype == expected


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_what_cannot_be_quantized(checkpoint, quantize):
    """Says what it takes."""
    with pytest.raises(ResourceError, match=f"--quantize {quantize} here"):
        load_engine(str(checkpoint("gemma")), EngineConfig(threads=1, quantize=quantize))


def test_what_is_let_go_keeps_its_content(kernels, tmp_path):
    """Memory of a file and memory of our own may leave, and is there again when it is read."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    for tensor in (torch.from_file(str(path), size=1 << 20, dtype=torch.uint8), torch.full((1 << 20,), 7.0)):
        before = tensor.clone()
        kernels.page_out(tensor.data_ptr(), tensor.nbytes)
        assert torch.equal(tensor, before)
