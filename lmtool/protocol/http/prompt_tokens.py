"""A request's prompt as the ids that the model gets, cut to its last ones; and the ids of words that are barred."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.logits_processors import ALLOWED_TOKEN_IDS, BAD_WORDS
from lmtool.core.types import NamedProcessor
from lmtool.protocol.http.decoding import refuse

if TYPE_CHECKING:
    from lmtool.core.interfaces import Tokenizer
    from lmtool.core.types import Prompt
    from lmtool.protocol.http.models import Served
    from lmtool.protocol.http.requests import Call

_MARGIN = 64
"""Tokens behind a cut of a text that may be others than those of the whole text."""


async def prompt_tokens(prompt: Prompt, call: Call, served: Served) -> tuple[int, ...]:
    """The ids of one prompt of a call. Raises `ApiError` for a text where there is no tokenizer."""
    most = _most(call, served)
    if isinstance(prompt, tuple):
        ids = prompt
    elif isinstance(prompt, str) and most is not None:
        return await _ending(prompt, most, served.need_tokenizer(), special=call.add_special_tokens)
    else:
        ids = tuple(await served.need_tokenizer().tokenize(prompt, special=call.add_special_tokens))
    return ids if most is None else ids[-most:]


def _most(call: Call, served: Served) -> int | None:
    """How many tokens of a prompt are kept; None: all."""
    context = served.info.context_length
    if call.truncate != -1 or context is None:
        return None if call.truncate == -1 else call.truncate
    answer = call.sampling.max_tokens
    return max(1, context - (answer if answer < context else 1))


async def _ending(text: str, most: int, tokenizer: Tokenizer, *, special: bool) -> tuple[int, ...]:
    """The last ids of a text, behind those that the model expects at its start.

    Of a long text only so much is tokenized as is needed: as many as are kept, and some before them.
    """
    first = tuple(await tokenizer.tokenize("", special=special))[:most]
    size = 2 * (most + _MARGIN)
    while True:
        ids = await tokenizer.tokenize(text[-size:], special=False)
        if size >= len(text) or len(ids) >= most + _MARGIN:
            break
        size *= 2
    if size >= len(text) and len(first) + len(ids) <= most:
        return tuple(await tokenizer.tokenize(text, special=special))
    room = most - len(first)
    return (*first, *(ids[-room:] if room else ()))


def token_filters(call: Call, served: Served) -> tuple[NamedProcessor, ...]:
    """The logits processors that `bad_words` and `allowed_token_ids` are. Raises `ApiError`."""
    filters: tuple[NamedProcessor, ...] = ()
    if call.allowed_token_ids:
        size = served.info.vocab_size
        if size is not None and max(call.allowed_token_ids) >= size:
            refuse("allowed_token_ids", f"allowed_token_ids must be ids from 0 to {size - 1}")
        filters += (NamedProcessor(ALLOWED_TOKEN_IDS, {"ids": list(call.allowed_token_ids)}),)
    if call.bad_words:
        tokenizer = served.need_tokenizer()
        sequences = {tuple(ids) for word in call.bad_words for ids in _spellings(word, tokenizer)}
        filters += (NamedProcessor(BAD_WORDS, {"sequences": sorted(map(list, sequences))}),)
    return filters


def _spellings(word: str, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of a word as it stands behind other text, and behind a blank."""
    plain = word.lstrip(" ") or word
    spelled = [tokenizer.encode_continuation(word) for word in (plain, f" {plain}")]
    return [ids for ids in spelled if ids]
