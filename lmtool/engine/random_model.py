"""Causal language models of random weights, made where they are computed: no file is written or read, no network.

For measurements: the same name, seed, dtype and device give the same weights in each process. The tables can be read
without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

PREFIX = "random:"
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-100m": {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "llama-1b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
    },
    "llama-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "qwen2-0.5b": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "llama-tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "qwen2-tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "gpt2": {},
}
"""The models of `random:NAME`; `gpt2` is the smallest of its family, 124 million weights."""
_BIAS = 0.1
"""Standard deviation of Qwen2's biases: transformers' own are 0, which no error would show."""


def is_random(name: str) -> bool:
    """Whether the name is `random:` with a name of `SHAPES`."""
    return name.startswith(PREFIX) and name.removeprefix(PREFIX) in SHAPES


def random_config(name: str) -> PreTrainedConfig:
    """The configuration of a model, by its name in `SHAPES` with or without the prefix. Raises `ModelLoadError`."""
    import transformers

    shape = name.removeprefix(PREFIX)
    if shape not in SHAPES:
        raise ModelLoadError(f"there is no model {name!r}", f"known: {', '.join(PREFIX + one for one in SHAPES)}")
    kinds = {"gpt2": transformers.GPT2Config, "llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
    return kinds[shape.partition("-")[0]](**SHAPES[shape], **_SPECIAL)


def random_model(
    name: str, dtype: torch.dtype, device: torch.device, *, seed: int = 0, attention: str = "eager"
) -> PreTrainedModel:
    """The model on `device`, in evaluation mode, without gradients.

    attention: an implementation of transformers. Sets torch's seed. Raises `ModelLoadError`, or torch's error where it
    does not fit into memory.
    """
    import torch
    import transformers

    config = random_config(name)
    torch.manual_seed(seed)
    with torch.device(device):
        made: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model: PreTrainedModel = made
    model.train(mode=False)
    with torch.no_grad():
        for part, weight in model.named_parameters():
            weight.requires_grad = False
            if config.model_type == "qwen2" and part.endswith(".bias"):
                weight.normal_(std=_BIAS)
    return model
