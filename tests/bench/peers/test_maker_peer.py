"""Random checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from lmtool.bench.checkpoint import read_checkpoint
from lmtool.bench.peers.maker_peer import SHAPES, Peer


def test_a_seed_makes_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    """And another seed makes others."""
    Peer({}).make("llama-tiny", str(tmp_path / "again"), 0)
    Peer({}).make("llama-tiny", str(tmp_path / "other"), 1)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tiny, tmp_path / "again", tmp_path / "other")]
    assert weights[0] == weights[1] != weights[2]


def test_the_folder_is_whole(tiny: Path) -> None:
    """Configuration, weights, and a tokenizer with a word for each id."""
    size = SHAPES["llama-tiny"]["vocab_size"]
    assert json.loads((tiny / "config.json").read_text())["vocab_size"] == size
    assert read_checkpoint(tiny).vocab_size == size
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == size
    assert tokenizer.encode("w9 w3").ids == [9, 3]
