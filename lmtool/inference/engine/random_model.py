"""Causal language models of random weights, made where they are computed: no file is written or read, no network.

For measurements: the same name, seed, dtype and device give the same weights in each process. The tables can be read
without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

PREFIX = "random:"
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES: dict[str, tuple[int, ...]] = {
    "llama-100m": (32000, 768, 2048, 12, 12, 4, 8192),
    "llama-1b": (32000, 2048, 5632, 22, 32, 4, 8192),
    "llama-8b": (128256, 4096, 14336, 32, 32, 8, 131072),
    "qwen2-0.5b": (151936, 896, 4864, 24, 14, 2, 131072),
    "llama-tiny": (512, 128, 256, 2, 4, 2, 1024),
    "qwen2-tiny": (512, 128, 256, 2, 4, 2, 1024),
    "gpt2": (),
}
_FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)
"""Names of the configuration fields, in the order of `_SIZES`."""
_TIED = ("llama-100m", "qwen2-0.5b")
"""Models whose output weights are those of the embedding."""
SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip(_FIELDS, sizes, strict=False)) | ({"tie_word_embeddings": True} if name in _TIED else {})
    for name, sizes in _SIZES.items()
}
"""The models of `random:NAME`; `gpt2` is the smallest of its family, 124 million weights."""
_BIAS = 0.1
"""Standard deviation of Qwen2's biases: transformers' own are 0, which no error would show."""


def is_random(name: str) -> bool:
    """True if the name is `random:` with a name of `SHAPES`."""
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
