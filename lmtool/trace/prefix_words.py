"""What `prefix_sharing` found, in plain words and as JSON objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.inference.text.prompts import split_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lmtool.trace.prefix_sharing import Difference, SharedPrefix

_WORTH_TELLING = 32
"""Tokens or characters behind a difference that are as before; fewer may be a bracket or two."""
_SLACK = 64
"""Tokens that a server may have fewer of without a word: caches hold blocks."""


def sentences(shared: SharedPrefix, spell: Callable[[int], str | bytes | None] = lambda _: None) -> list[str]:
    """Lines for people: how much is in common and what the server had; then why no more. spell: what ids mean."""
    content = shared.content
    first = [_amount(shared, shared.total) if content.parts else "no prompt in the trace"]
    if shared.earlier is not None:
        share = f" ({round(100 * shared.common / shared.total)} %)" if shared.total else ""
        first.append(
            f"{_amount(shared, shared.common, shared.common_tokens)}{share} in common with {shared.earlier.label}"
        )
    elif content.parts:
        first.append(f"the first of {content.scope[0] or 'its model'}")
    if shared.cached_tokens is not None and shared.prompt_tokens is not None:
        computed = max(0, shared.prompt_tokens - shared.cached_tokens)
        first.append(f"cached {shared.cached_tokens:,}, computed {computed:,}")
    lines = ["; ".join(first)]
    return [*lines, *_reasons(shared, spell)]


def _amount(shared: SharedPrefix, amount: int, tokens: int | None = None) -> str:
    """An amount of a prompt in tokens where they are known, `about` where they are estimated."""
    tokens = shared.in_tokens(amount) if tokens is None else tokens
    if tokens is None:
        return f"{amount:,} {shared.content.unit}"
    about = "" if shared.content.unit == "tokens" or amount in (0, shared.total) else "about "
    return f"{about}{tokens:,} token{'s' * (tokens != 1)}"


def _reasons(shared: SharedPrefix, spell: Callable[[int], str | bytes | None]) -> Iterator[str]:
    """Further lines: what ends the common beginning, what that costs, and what else is known."""
    if shared.difference is not None:
        yield _difference(shared, shared.difference, spell)
    again = repeated_tokens(shared)
    if shared.repeated >= _WORTH_TELLING:
        computed = "" if again is None else f"; computed again: {again:,}"
        yield f"behind it {_amount(shared, shared.repeated)} are as before{computed}"
    common = shared.common_tokens
    if shared.cached_tokens is not None and common is not None and shared.cached_tokens + _SLACK < common:
        less = f"{common - shared.cached_tokens:,} tokens less than is in common"
        yield f"the server had {less}: evicted, never cached, or in another replica"
    if shared.cached_tokens is not None and common is not None and shared.cached_tokens >= common + _WORTH_TELLING:
        more = f"{shared.cached_tokens - common:,} tokens more than is in common"
        yield f"the server had {more}: it keeps answers, too, or had the prompt from elsewhere"
    if shared.settings and shared.difference is not None and shared.difference.kind != "template":
        yield f"settings that may change what stands around messages differ as well: {', '.join(shared.settings)}"
    if shared.content.missing:
        yield f"not all of the prompt is known: {shared.content.missing}"


def repeated_tokens(shared: SharedPrefix) -> int | None:
    """Tokens behind the difference that an earlier prompt had as well, and that were computed; None where unknown."""
    again = shared.in_tokens(shared.repeated)
    if again is None or shared.prompt_tokens is None:
        return again
    cached = min(shared.prompt_tokens, shared.cached_tokens or 0)
    return min(again, shared.prompt_tokens - cached)


def _difference(shared: SharedPrefix, difference: Difference, spell: Callable[[int], str | bytes | None]) -> str:
    part = _place(shared, spell) if difference.part == "tokens" else difference.part
    match difference.kind:
        case "same":
            return "the same prompt"
        case "template":
            return f"the same messages; settings that may change what stands around them differ: {difference.part}"
        case "shorter":
            return "all of it is the beginning of that one"
        case "order":
            return "the tools stand in another order"
        case "new":
            return f"goes on with it: {f'what follows in {part}' if difference.at else part} is new"
        case "place":
            return f"{difference.now} stands where {difference.before} stood"
    at = f"token {shared.common + 1:,}" if difference.part == "tokens" else f"character {difference.at + 1:,}"
    what = {"date": ", a date or time", "id": ", an id"}.get(difference.kind, "")
    before, now = _quote(difference.before, spell), _quote(difference.now, spell)
    return f"{part} differs from {at}{what}: {before} before, {now} now"


def _quote(text: str | Sequence[int], spell: Callable[[int], str | bytes | None]) -> str:
    """A piece of text between quotes; ids by what they mean, or by their numbers."""
    if not isinstance(text, str):
        known = [spell(one) for one in text]
        if not text or any(one is None for one in known):
            return " ".join(map(str, text[:8])) or "the end"
        text = b"".join(one.encode() if isinstance(one, str) else one or b"" for one in known).decode(errors="replace")
    return repr(text) if text else "the end"


def _place(shared: SharedPrefix, spell: Callable[[int], str | bytes | None]) -> str:
    """The turn that the common beginning of ids ends in; `the prompt` where ids mean nothing, or there are no turns."""
    data = bytearray()
    left = shared.common + 1
    for part in shared.content.parts:
        for token in part.text[:left]:
            piece = spell(token) if isinstance(token, int) else None
            if piece is None:
                return "the prompt"
            data += piece if isinstance(piece, bytes) else piece.encode() or b"\0\0"
        left = max(0, left - len(part.text))
    turns = [turn for turn in split_turns(data.decode(errors="replace")) if turn.role]
    if not turns:
        return "the prompt"
    return "system" if len(turns) == 1 and turns[0].role == "system" else f"message {len(turns)} ({turns[-1].role})"


def as_json(shared: SharedPrefix, spell: Callable[[int], str | bytes | None] = lambda _: None) -> dict[str, object]:
    """The same as an object; amounts in `unit`, and in tokens where these are known."""
    difference, computed = shared.difference, None
    if shared.prompt_tokens is not None and shared.cached_tokens is not None:
        computed = max(0, shared.prompt_tokens - shared.cached_tokens)
    return {
        "request": shared.label,
        "time": shared.time,
        "kind": shared.kind,
        "model": shared.content.scope[0],
        "unit": shared.content.unit,
        "prompt": shared.total,
        "common": shared.common,
        "with": None if shared.earlier is None else shared.earlier.label,
        "differs": None if difference is None else _differs(shared, difference, spell),
        "again": shared.repeated,
        "settings": list(shared.settings),
        "missing": shared.content.missing or None,
        "tokens": {
            "prompt": shared.prompt_tokens,
            "common": shared.common_tokens,
            "again": repeated_tokens(shared),
            "cached": shared.cached_tokens,
            "computed": computed,
            "exact": shared.content.unit == "tokens",
        },
        "words": sentences(shared, spell),
    }


def _differs(
    shared: SharedPrefix, difference: Difference, spell: Callable[[int], str | bytes | None]
) -> dict[str, object]:
    ids = difference.part == "tokens"
    return {
        "kind": difference.kind,
        "part": _place(shared, spell) if ids else difference.part,
        "at": difference.at,
        "before": difference.before if isinstance(difference.before, str) else list(difference.before),
        "now": difference.now if isinstance(difference.now, str) else list(difference.now),
    }


def summary(requests: Sequence[SharedPrefix]) -> Mapping[str, int]:
    """Sums over all requests, in tokens; of those only where tokens are known."""
    return {
        "requests": len(requests),
        "prompt_tokens": sum(one.prompt_tokens or 0 for one in requests),
        "cached_tokens": sum(one.cached_tokens or 0 for one in requests),
        "computed_again": sum(repeated_tokens(one) or 0 for one in requests),
    }
