"""MODEL_INFO's object."""

import msgspec

from lmtool.core.model_entry import ModelEntry
from lmtool.core.types import ModelInfo, TokenizerInfo
from lmtool.protocol.lmtp import model_info

FULL = ModelInfo(
    "gpt2",
    "AutoModelForCausalLM.from_pretrained('gpt2')",
    "transformers",
    50257,
    1024,
    (50256,),
    50256,
    "GPT2LMHeadModel",
    124_000_000,
    "float32",
    "cpu",
    TokenizerInfo("gpt2", "abc"),
    chat_template=True,
    versions={"transformers": "5.23", "torch": "2.13"},
    running=1,
    waiting=0,
    kernels="C kernels (AVX512)",
    max_top_logprobs=256,
    fingerprint="0123456789abcdef" * 4,
    batch_invariant=False,
    sampling_defaults={"temperature": 0.6, "top_k": 20},
)


def through_the_wire(info):
    return msgspec.json.decode(msgspec.json.encode(model_info.to_wire(info, extended=True)))


def test_round_trip():
    """What is told of a model is read back as the same."""
    assert model_info.from_wire(through_the_wire(FULL), None) == FULL
    bare = ModelInfo("m", "c", "b")
    assert model_info.from_wire(through_the_wire(bare), None) == bare


def test_fingerprint_is_an_extension():
    """Others are not told it, and what is none is not believed (INF-8)."""
    assert "fingerprint" not in model_info.to_wire(FULL)
    for told in ("0" * 63, "A" * 64, 5, None):
        assert model_info.from_wire({"fingerprint": told}, None).fingerprint is None


def test_what_makes_no_sense_is_not_believed():
    """A `batch_invariant` that is no boolean and defaults that no engine could use are left out (INF-3)."""
    found = model_info.from_wire({"batch_invariant": 1, "sampling_defaults": {"top_p": 2, "top_k": 3, "x": 1}}, None)
    assert (found.batch_invariant, found.sampling_defaults) == (None, {"top_k": 3})


def test_old_names_are_kept():
    """`model`, `model_type`, `constructor` and the library's version stand where LMQL's server has them."""
    told = model_info.to_wire(FULL)
    assert list(told)[:4] == ["model", "model_type", "constructor", "transformers"]
    assert told["lmtp"] == 1
    assert "cancel" in told["extensions"]


def test_other_servers():
    """What LMQL's servers tell is read as far as it goes."""
    transformers = {"model": "gpt2", "model_type": "transformers", "constructor": "x", "transformers": "4.36.2"}
    read = model_info.from_wire(transformers, "gpt2")
    assert (read.model, read.backend, read.versions) == ("gpt2", "transformers", {"transformers": "4.36.2"})
    assert read.vocab_size is None
    llama = {"model_identifier": "x.gguf", "model_type": "llama.cpp", "constructor": "Llama(...)"}
    assert model_info.from_wire(llama, None).model == "x.gguf"
    assert model_info.from_wire("UniformRandomSamplingLLM(seed=0)", "random").constructor.startswith("Uniform")


def test_nonsense_is_not_believed():
    """Values of wrong kinds are taken for not told."""
    read = model_info.from_wire(
        {"model": 5, "vocab_size": "many", "eos_token_ids": 3, "tokenizer": "x", "versions": 1, "dtype": []}, "asked"
    )
    assert read == ModelInfo("asked", "", "unknown")


def test_an_entry_of_a_list():
    """What is known of a served model is read back as the same; what is not known is not sent."""
    entry = ModelEntry("a", ("b",), "failed", 5, 10, 1.5, pinned=True, error="cut off", architecture="LlamaForCausalLM")
    wire = msgspec.json.decode(msgspec.json.encode(model_info.entry_to_wire(entry)))
    assert model_info.entry_from_wire(wire) == entry
    bare = ModelEntry("a", phase="unloaded")
    assert model_info.entry_to_wire(bare) == {"name": "a", "phase": "unloaded"}
    assert model_info.entry_from_wire({"name": "a", "phase": "unloaded", "pinned": 1, "error": 5}) == bare
