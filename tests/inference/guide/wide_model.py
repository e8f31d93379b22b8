"""A model of random weights with a vocabulary of 128,256 tokens: `python -m tests.inference.guide.wide_model FOLDER`.

For `lmtool serve FOLDER` and `lmtool bench serve --scenario S7`: what a mask costs goes by the size of the vocabulary.
"""

from __future__ import annotations

import itertools
import string
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lmtool.inference.engine.random_model import SHAPES

SIZE = 128_256
SPECIAL = ("<pad>", "<s>", "</s>")


def tokenizer(size: int) -> Tokenizer:
    """Bytes, pairs of printable characters, and words made of pairs of letters, each with and without a blank."""
    vocabulary = {
        token: number for number, token in enumerate((*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    merges: list[tuple[str, str]] = []
    shown = [chr(number) for number in range(33, 127)]
    pairs = [a + b for a, b in itertools.product(string.ascii_lowercase, repeat=2)]
    words = ((a, b) for a, b in itertools.product(pairs, [*string.ascii_lowercase, *pairs]))
    parts = itertools.chain(itertools.product(["Ġ", *shown], shown), (("Ġ", pair) for pair in pairs), words)
    for left, right in parts:
        if len(vocabulary) >= size:
            break
        if left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def make(folder: Path, size: int = SIZE) -> None:
    """Write the model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(**{**SHAPES["llama-100m"], "vocab_size": size}, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer(size), **special).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
