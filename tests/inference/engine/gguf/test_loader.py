"""GGUF files in our own engine: the logits of the numbers in the file, whatever they are stored as."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from lmtool.core.errors import ModelLoadError, ResourceError
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.library import use_kernels
from lmtool.inference.engine.cpu.products import pack
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.gguf.header import read_header
from lmtool.inference.engine.gguf.loader import choose_blocks, gguf_modules, load_gguf, open_gguf
from lmtool.inference.engine.selfcheck import check_runner, reference_logits
from tests.inference.engine.conftest import bits
from tests.inference.engine.gguf.conftest import SHAPE, random_model
from tests.inference.engine.gguf.writing import MIXED, write

CPU = torch.device("cpu")
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "llama-tied": lambda: transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True, attention_bias=True, head_dim=64),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=9),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, rms_norm_eps=1e-3),
    "qwen3": lambda: transformers.Qwen3Config(
        **SHAPE, head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    ),
}
EXACT = {"dtype": "float32"}


def quiet(_progress: object) -> None:
    """Nobody asks how the load proceeds."""


@pytest.fixture
def written(tmp_path: Path):
    """Write a model of this architecture in this type; returns the file's name, and transformers' logits of it."""

    def make(name: str, kinds, metadata=None, tensors=None, model=None):
        model = model or random_model(CONFIGS[name]())
        path = tmp_path / f"{name}.gguf"
        more = {"llama.attention.sliding_window": 9} if name == "mistral" else {}
        write(path, model, kinds, {**more, **(metadata or {})}, tensors)
        with torch.inference_mode():
            return str(path), reference_logits(model, name)

    return make


def loaded(path: str, **settings):
    """Through the C kernels."""
    with torch.inference_mode():
        model = load_gguf(path, EngineConfig(threads=1, **settings), CPU, quiet)
    assert model is not None
    return model


def check(model, reference, tolerance=None):
    """Its logits are those of transformers. tolerance: in standard deviations; None: of rounding in float32."""
    with torch.inference_mode():
        check_runner(model.runner, "it", reference, tolerance)


def test_each_weight_goes_to_the_device_at_once(written, monkeypatch):
    """Of a GPU's model the host never has more than one weight: none is moved when all are converted."""
    path, _ = written("llama", MIXED)
    devices = []
    monkeypatch.setattr(
        torch.nn.Module, "to", lambda model, _: devices.append({weight.device.type for weight in model.parameters()})
    )
    gguf_modules(path, EngineConfig(threads=1), torch.device("meta"), quiet)
    assert devices == [{"meta"}]


@pytest.mark.usefixtures("kernels")
class TestNumbers:
    """Everything is read as transformers has it: rows in their order, tied heads, biases, frequencies, windows."""

    @pytest.mark.parametrize("name", CONFIGS)
    def test_architectures(self, written, name):
        """Converted to float32, the logits are transformers' own; the types are mixed as in Q4_K_M."""
        path, reference = written(name, MIXED)
        model = loaded(path, **EXACT)
        check(model, reference)
        assert model.info.architecture == type(random_model(CONFIGS[name]())).__name__
        assert (model.info.dtype, model.info.backend) == ("float32", "lmtool")

    @pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"])
    def test_types(self, written, kind):
        """Each type alone."""
        path, reference = written("llama-tied", kind)
        check(loaded(path, **EXACT), reference)

    @pytest.mark.parametrize(("kinds", "dtype", "tolerance"), [
        ("Q4_0", "int4", 0.04),
        ("Q8_0", "int8", 0.04),
        ("Q4_1", "int8", 0.06),
        ("Q4_K", "Q4_K", 0.06),
        ("Q5_K", "Q5_K", 0.06),
        ("Q6_K", "Q6_K", 0.06),
        (MIXED, "Q4_K+Q6_K+Q5_K", 0.06),
        ({"output.": "Q6_K", "token_embd": "Q6_K", "attn_output": "Q4_0", "": "Q4_0"}, "int4+Q6_K", 0.06),
        ({"attn_v": "Q6_K", "attn_k": "Q5_0", "": "Q4_0"}, "int4+int8+Q6_K", 0.06),
        ({"ffn_up": "Q6_K", "": "Q4_K"}, "Q4_K+int8", 0.06),
    ])  # fmt: skip
    @pytest.mark.parametrize("name", ["llama", "llama-tied"])
    def test_by_default(self, written, name, kinds, dtype, tolerance):
        """Blocks that the kernels multiply stay as they are, others become bytes: more is lost by rounding inputs.

        So do gates whose type is not that of what they let through; queries, keys and values may have three types.
        """
        path, reference = written(name, kinds)
        model = loaded(path)
        assert model.info.dtype == dtype
        check(model, reference, tolerance)

    @pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
    def test_blocks_as_they_are(self, kernels, written, kind):
        """Of what the file has nothing is lost: packed, weights are its own numbers."""
        path, _ = written("llama", kind)
        _, weights = open_gguf(path, quiet)
        numbers = {name: weights[name] for name in ("model.layers.1.mlp.down_proj.weight", "lm_head.weight")}
        weights.blocks = choose_blocks(weights, EngineConfig())
        for name, exact in numbers.items():
            packed = pack(kernels, weights[name], None, torch.float32)
            assert torch.equal(packed.rows(kernels, torch.arange(len(exact))), exact)

    def test_what_is_not_quantized_stays_so(self, written):
        """A product with weights in BF16 is held in a dtype as a whole."""
        path, reference = written("llama", {"attn_v": "BF16", "": "Q8_0"})
        _, weights = open_gguf(path, quiet)
        chosen = choose_blocks(weights, EngineConfig())
        dense = {name for name in weights if weights[name].dim() == 2} - chosen.keys()
        assert {name.split(".")[-2] for name in dense} == {"q_proj", "k_proj", "v_proj"}
        check(loaded(path), reference, 0.06)

    def test_quantize_int4_packs_what_is_wider(self, written):
        """All but Q4_0, which is as narrow."""
        path, reference = written("llama", {"ffn": "Q4_0", "": "Q8_0"})
        model = loaded(path, quantize="int4")
        assert model.info.dtype == "int4+int8"
        check(model, reference, 0.5)
        path, reference = written("llama", "Q4_0")
        check(loaded(path, quantize="int4"), reference, 0.04)

    @pytest.mark.parametrize(("settings", "dtype", "tolerance"), [
        ({"dtype": "bfloat16"}, "bfloat16", 0.05),
        ({"quantize": "int8"}, "int8", 0.1),
        ({"quantize": "int4"}, "int4+int8", 0.6),
    ])  # fmt: skip
    def test_what_weights_are_held_as(self, written, settings, dtype, tolerance):
        """By `--dtype` and `--quantize`, and told."""
        path, reference = written("llama", MIXED)
        model = loaded(path, **settings)
        assert model.info.dtype == dtype
        check(model, reference, tolerance)

    def test_linear_scaling(self, written):
        """Positions divided by a factor; also in files that do not name the kind."""
        rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
        model = random_model(transformers.LlamaConfig(**SHAPE, rope_parameters=rope))
        for kind in ({"llama.rope.scaling.type": "linear"}, {}):
            path, reference = written("llama", "F32", {**kind, "llama.rope.scaling.factor": 4.0}, model=model)
            check(loaded(path), reference)
            assert loaded(path, max_context=100).info.context_length == 100

    def test_factors_of_frequencies(self, written):
        """Llama 3's scaling is a tensor of the file."""
        rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        model = random_model(transformers.LlamaConfig(**SHAPE, rope_parameters=rope))
        plain = 1 / 1e4 ** (torch.arange(0, 32, 2) / 32)
        factors = plain / model.model.rotary_emb.inv_freq
        assert factors.max() > 2
        path, reference = written("llama", "F32", tensors={"rope_freqs.weight": factors.numpy()}, model=model)
        check(loaded(path), reference)
        with torch.inference_mode():
            modules = gguf_modules(path, EngineConfig(dtype="float32"), CPU, quiet)
        assert torch.allclose(modules.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)

    def test_ends(self, written):
        """The metadata's own ids, and control tokens that end an answer by their names."""
        tokens = [f"t{i}" for i in range(101)]
        tokens[5], tokens[6] = "<|im_end|>", "<|eot_id|>"
        kinds = [3 if i == 5 else 1 for i in range(101)]
        keys = {"tokens": tokens, "token_type": kinds, "eos_token_id": 9, "bos_token_id": 3, "eot_token_id": 500}
        path, _ = written("llama", "F32", {f"tokenizer.ggml.{key}": value for key, value in keys.items()})
        info = loaded(path).info
        assert (info.eos_token_ids, info.bos_token_id) == ((9, 5), 3)


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_through_transformers(written, name):
    """Without C kernels transformers' modules get the same numbers, and are checked as other models are."""
    path, reference = written(name, MIXED)
    with torch.inference_mode():
        model = gguf_modules(path, EngineConfig(**EXACT), CPU, quiet)
        logits = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in reference.prompts]
    for ours, theirs in zip(logits, reference.logits, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    engine = load_engine(path, EngineConfig(threads=1, kernels="none", **EXACT))
    try:
        assert engine.info_now.model == name
        assert engine.info_now.dtype == "float32"
    finally:
        engine.close()
        use_kernels("auto")  # else none for all of this process


async def test_alone_and_in_a_crowd(written, run, kernels):
    """Streams of a file in mixed blocks have the same bits in any company, as those of other models."""
    path, _ = written("llama", {"output": "Q6_K", "ffn": "Q8_0", "": "Q4_0"})
    engine = load_engine(path, EngineConfig(threads=1))
    sampling = SamplingParams(max_tokens=6, ignore_eos=True, top_logprobs=2, temperature=0.7, seed=3)
    requests = [GenerateRequest(n, tuple(range(1, 4 + 3 * n)), sampling) for n in range(9)]
    requests.append(ScoreRequest(9, (5, 6), tuple(range(10, 60))))
    try:
        crowd = await run(engine, *requests)
        for number in (0, 4, 9):
            assert bits((await run(engine, requests[number]))[number]) == bits(crowd[number])
    finally:
        engine.close()


def test_the_fingerprint(written, kernels):
    """Of the file's numbers: the same for the same file, another for other weights."""
    path, _ = written("llama", "Q4_0")
    first = loaded(path).contents
    assert loaded(path).contents == first
    content = bytearray(Path(path).read_bytes())
    content[read_header(Path(path)).tensors["blk.1.ffn_up.weight"].start + 5] ^= 1
    Path(path).write_bytes(content)
    assert loaded(path).contents not in {first, None}


def test_without_the_package(small, monkeypatch):
    """The line to install it."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ResourceError, match="need the package gguf") as missing:
        load_engine(str(small), EngineConfig(threads=1))
    assert "lmtool[serve,gguf]" in missing.value.hints[0]


def test_a_file_that_is_not_there(tmp_path):
    """As it is said of folders."""
    with pytest.raises(ModelLoadError, match="cannot read"):
        load_engine(str(tmp_path / "none.gguf"), EngineConfig(threads=1))


def test_the_types_are_ggufs_own():
    """What is converted by name is known there."""
    from lmtool.inference.engine.gguf import loader

    assert {*loader.PLAIN, *loader._QUANTIZED} <= {kind.name for kind in gguf.GGMLQuantizationType}
