"""The tokenizer: byte-level BPE trained on the corpus, with every digit a token of its own."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.tiny.recipe.corpus import documents
from tests.tiny.recipe.document import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TOOL_TOKENS, TURN_END

SIZE = 1536
"""Tokens, including the special ones."""
CONTEXT = 512
"""The model's context length in tokens."""


def train_tokenizer(seed: int, *, texts: int = 20_000, size: int = SIZE) -> Tokenizer:
    """Return a tokenizer trained on `texts` documents of the corpus."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(TOOL_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, texts), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TOOL_TOKENS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer and its chat template in transformers' layout."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _texts(seed: int, count: int) -> Iterator[str]:
    for document in islice(documents(seed), count):
        text = "".join(segment.text for segment in document.segments())
        for token in (*SPECIAL_TOKENS, *TOOL_TOKENS):
            text = text.replace(token, "")
        yield text
