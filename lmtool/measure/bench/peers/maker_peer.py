"""Makes checkpoints with random weights, and downloads models of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmtool.inference.engine.random_model import random_model


class Peer:
    """Makes folders in transformers' layout."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: ignored."""

    def about(self) -> dict[str, Any]:
        """Transformers' version."""
        import transformers

        return {"versions": {"transformers": transformers.__version__}}

    def make(self, name: str, folder: str, seed: int, dtype: str = "float32", device: str = "cpu") -> dict[str, Any]:
        """Write a model of random weights, and a tokenizer with a word for each id.

        device: where the weights are made; another one makes others.
        """
        import torch

        model = random_model(name, getattr(torch, dtype), torch.device(device), seed=seed)
        model.save_pretrained(folder)
        save_tokenizer(model.config.vocab_size, folder)
        return {"folder": folder}

    def find_device(self, device: str) -> dict[str, str]:
        """The device's full name. Raises `ResourceError` where it is not there."""
        from lmtool.inference.engine.weights import find_device

        return {"device": str(find_device(device))}

    def count(self, name: str) -> dict[str, int]:
        """The fields of a `Checkpoint` for `random:NAME`, whose weights are not made for that."""
        import torch

        model = random_model(name, torch.bfloat16, torch.device("meta"))
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        total = model.num_parameters()
        looked_up = 0 if head is embedding else embedding.numel()
        return {"parameters": total, "read": total - looked_up, "vocab_size": embedding.shape[0]}

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
