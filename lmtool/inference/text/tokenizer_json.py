"""Reads the JSON files of a stranger's tokenizer within bounds, and explains failures of the `tokenizers` library."""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer

from lmtool.core.errors import FileError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_ADDED_CHARACTERS = 1 << 22
"""In all added tokens together: the library takes about 60 bytes of memory for each."""
_MOST_GROWTH = 256
"""Characters that normalization or decoding may make of one."""
_MOST_FRAMING = 256
"""Tokens that may stand around each text, such as bos."""


class _Stage(msgspec.Struct):
    content: str = ""
    prepend: str = ""
    pattern: dict[str, str] = {}  # msgspec copies it
    normalizers: list[_Stage] = []
    decoders: list[_Stage] = []

    def growth(self) -> int:
        """Most characters that this stage makes of one; a regular expression may also match between two."""
        own = max(1, len(self.content) + (not self.pattern.get("String"))) + len(self.prepend)
        return math.prod((stage.growth() for stage in (*self.normalizers, *self.decoders)), start=own)


class _AddedToken(msgspec.Struct):
    content: str = ""


class _Model(msgspec.Struct):
    vocab: dict[str, Annotated[int, Meta(lt=1 << 24)]] | list[Any] | None = None  # llguidance has a row for each id


class _File(msgspec.Struct):
    added_tokens: Annotated[list[_AddedToken], Meta(max_length=1 << 17)] = []
    normalizer: _Stage | None = None
    decoder: _Stage | None = None
    model: _Model | None = None


def parse_tokenizer(text: str, where: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json. where: the file, for the error.

    Raises `FileError`, also for one with which loading, or encoding a text, would not end or would fill memory.
    """
    try:
        _check(msgspec.json.decode(text, type=_File))
        tokenizer = Tokenizer.from_str(text)
        _check_framing(tokenizer)
    except Exception as error:  # tokenizers raises nothing finer
        raise FileError(
            f"{where} is no tokenizer that this version of `tokenizers` can read: {error}",
            "download it again, or upgrade with: pip install -U tokenizers",
        ) from error
    if getattr(tokenizer.model, "dropout", None):  # for training: the same text would have other ids each time
        tokenizer.model.dropout = None
    return tokenizer


def _check(file: _File) -> None:
    if (size := sum(len(token.content) for token in file.added_tokens)) > _MOST_ADDED_CHARACTERS:
        raise ValueError(f"its added tokens have {size} characters; expected {_MOST_ADDED_CHARACTERS} at most")
    for stage in (file.normalizer, file.decoder):
        if stage is not None and stage.growth() > _MOST_GROWTH:
            raise ValueError(f"its normalizer or decoder can make a text more than {_MOST_GROWTH} times as long")


def _check_framing(tokenizer: Tokenizer) -> None:
    if (added := tokenizer.num_special_tokens_to_add(is_pair=False)) > _MOST_FRAMING:
        raise ValueError(f"it adds {added} tokens to each text; expected {_MOST_FRAMING} at most")


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object of a file of settings. where: the file, for the error. Raises `FileError`."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # also for a lone surrogate
        raise FileError(f"{where} is no JSON: {error}", "download it again") from error
    if not isinstance(value, dict):
        raise FileError(f"{where} holds {type(value).__name__}, a JSON object was expected", "download it again")
    return value


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Turn what the `tokenizers` library raises, a panic included, into `RequestError`."""
    try:
        yield
    except TypeError as error:  # what it says of surrogates; the type itself is known here
        raise RequestError(
            "the text holds a surrogate (U+D800 to U+DFFF) without its pair, which is no character",
            "leave it out, or send both halves",
        ) from error
    except BaseException as error:  # it raises nothing finer, and a panic is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"the model's tokenizer fails on this text: {str(error)[:200]}", "send token ids") from error
