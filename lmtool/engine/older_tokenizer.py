"""Tokenizers of models that have no tokenizer.json, made by transformers from their older files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.errors import FileError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def convert(name: str, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a folder or hub name, from vocab.json and merges.txt, a SentencePiece model or the like.

    Raises `FileError` where transformers makes none that the `tokenizers` library can run: one that is Python code,
    or one whose files or libraries are missing.
    """
    from transformers import AutoTokenizer

    advice = (
        f"save it in today's format, where that works:  AutoTokenizer.from_pretrained({name!r}).save_pretrained(FOLDER)"
    )
    try:
        made = AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        if reason.endswith(":"):  # a list of all that transformers has tried
            raise FileError(f"{name!r} has no tokenizer: neither tokenizer.json nor older files", advice) from error
        raise FileError(f"{name!r} has no tokenizer.json, and none can be made: {reason}", advice) from error
    tokenizer: Tokenizer | None = getattr(made, "backend_tokenizer", None)
    if tokenizer is None:
        raise FileError(f"{name!r} has a tokenizer of Python code, {type(made).__name__}", advice)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if not tokenizer.get_vocab().keys() - added:  # what transformers makes of a folder without any tokenizer
        raise FileError(f"{name!r} has no tokenizer: neither tokenizer.json nor older files", advice)
    return tokenizer
