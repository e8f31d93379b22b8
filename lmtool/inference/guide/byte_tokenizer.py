"""The library's tokenizer of single bytes, for texts that no model writes."""

from __future__ import annotations

from functools import cache

from llguidance import LLTokenizer


@cache
def byte_tokenizer() -> LLTokenizer:
    """One for all, because making it takes longer than compiling a small pattern. Token ids are bytes."""
    return LLTokenizer("byte")
