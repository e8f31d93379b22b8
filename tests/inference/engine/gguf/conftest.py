"""Small GGUF files, written by the package gguf."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from tests.inference.engine.gguf.writing import write

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
SHAPE = {
    "vocab_size": 101,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}


def random_model(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    """With the same weights at each call, biases and norms among them."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.rand_like(parameter) * 0.2)
    return model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file of a Llama, few bytes long."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 7}
    write(path, random_model(transformers.LlamaConfig(**{**SHAPE, **sizes})), "Q8_0")
    return path


def vocabulary(folder: Path) -> dict[str, object]:
    """Metadata of the tokenizer in a folder, byte-level as the embedded model's or SentencePiece as stories260K's."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | added
    names = sorted(ids, key=ids.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    spaced = tokenizer["model"]["byte_fallback"]
    keys: dict[str, object] = {
        "model": "llama" if spaced else "gpt2",
        "tokens": names,
        "token_type": [CONTROL if name in added else NORMAL for name in names],
        "bos_token_id": ids[settings["bos_token"]],
        "eos_token_id": ids[settings["eos_token"]],
    }
    if spaced:
        ranks = {merge.replace(" ", ""): rank for rank, merge in enumerate(merges)}
        keys["scores"] = [-float(ranks.get(name, 1e6)) for name in names]
        kinds = [UNKNOWN if name == "<unk>" else BYTE if name.startswith("<0x") else None for name in names]
        keys["token_type"] = [
            kind or (CONTROL if name in added else NORMAL) for kind, name in zip(kinds, names, strict=True)
        ]
    else:
        keys |= {"pre": "smollm", "merges": merges, "add_bos_token": False}
    found = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return found | ({"tokenizer.chat_template": settings["chat_template"]} if "chat_template" in settings else {})
