"""A random GPT-2 of 304 tokens whose files old and new libraries read, the same one each time."""

from __future__ import annotations

import json
from pathlib import Path


def make_tiny_gpt2(folder: Path) -> None:
    """Make the folder, and the model in it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "Say hello to the world. The answer is yes or no. one two three four five"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    end = "<|endoftext|>"
    tokenizer.train_from_iterator(
        [text] * 20, trainers.BpeTrainer(vocab_size=304, special_tokens=[end], initial_alphabet=alphabet)
    )
    pieces = json.loads(tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in pieces["merges"]]
    (folder / "vocab.json").write_text(json.dumps(pieces["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end, "unk_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(pieces["vocab"]),
        n_positions=512,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,  # far enough from uniform that ties are rare
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
