"""Makes checkpoints with random weights, and downloads models of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    "llama-tiny": {
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


class Peer:
    """Makes folders in transformers' layout."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: ignored."""

    def about(self) -> dict[str, Any]:
        """Transformers' version."""
        import transformers

        return {"versions": {"transformers": transformers.__version__}}

    def make(self, name: str, folder: str, seed: int) -> dict[str, Any]:
        """Write a model of random float32 weights, and a tokenizer with a word for each id."""
        import torch
        import transformers

        torch.manual_seed(seed)
        kind = transformers.GPT2Config if name == "gpt2" else transformers.LlamaConfig
        config = kind(**SHAPES[name], bos_token_id=1, eos_token_id=2, pad_token_id=0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
        save_tokenizer(config.vocab_size, folder)
        return {"folder": folder}

    def fetch(self, name: str) -> dict[str, Any]:
        """The folder of a hub model, downloaded where it is not in the cache."""
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
        return {"folder": str(Path(snapshot_download(name, allow_patterns=patterns)))}


def save_tokenizer(size: int, folder: str) -> None:
    """`<pad> <s> </s> w3 w4 ...`: for engines that need a vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(3, size))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<pad>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
