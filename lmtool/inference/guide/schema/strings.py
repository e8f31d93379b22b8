"""Regular expressions for formats that llguidance lacks, and for texts other than given ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from re import _parser  # type: ignore[attr-defined]  # no other reads patterns without running them
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SUPPORTED_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown",
})  # fmt: skip
"""Formats that llguidance enforces."""

_PCHAR = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"
_HOST_CHAR = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})"
_QUERY = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_SEGMENT_WITHOUT_COLON = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=@]|%[0-9A-Fa-f]{2})+"
_REFERENCE = (
    rf"(?://{_HOST_CHAR}+(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_SEGMENT_WITHOUT_COLON}(?:/{_PCHAR}*)*|)"
)
_URI_REFERENCE = (
    rf"(?:[A-Za-z][A-Za-z0-9+\-.]*:(?://{_HOST_CHAR}+(?::[0-9]+)?)?(?:/?{_PCHAR}+)*/?|{_REFERENCE}){_QUERY}"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"

_CLASS = (
    r"""\[\^?(?:a-[b-z]|A-[B-Z]|0-[1-9]|1-[2-9]|[A-Za-z0-9 _.,:;@#%&=<>"'~!/+*?$(){}|]|\\[dDwWsS.\\/\[\]^-])+-?\]"""
)
_ATOM = rf"""(?:[A-Za-z0-9 _,:;@#%&=<>"'~!/.-]|\\[.*+?^$|()\[\]{{}}\\/dDwWsStnr-]|{_CLASS})"""
_TIMES = r"(?:(?:[*+?]|\{[0-9]{1,3},?\}|\{[01],[1-9]\}|\{2,[2-9]\}|\{3,[3-9]\}|\{[0-9],[1-9][0-9]\})\??)?"
_TERM = rf"(?:{_ATOM}{_TIMES}|\\[bB])"
_FLAT = rf"{_TERM}*"
_GROUP = rf"\((?:\?:)?{_FLAT}(?:\|{_FLAT})*\){_TIMES}"
_DEEPER = rf"(?:{_TERM}|{_GROUP})*"
_NESTED = rf"\((?:\?:)?{_DEEPER}(?:\|{_DEEPER})*\){_TIMES}"
_BRANCH = rf"\^?(?:{_TERM}|{_NESTED})*\$?"
"""Regular expression with groups nested two deep; counts and ranges are always in order."""

PATTERNS: Mapping[str, str] = {
    "uri-reference": f"^{_URI_REFERENCE}$",
    "iri-reference": f"^{_URI_REFERENCE}$",
    "iri": rf"^[A-Za-z][A-Za-z0-9+\-.]*:(?://{_HOST_CHAR}+(?::[0-9]+)?)?(?:/?{_PCHAR}+)*/?{_QUERY}$",
    "uri-template": r"^(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#]|%[0-9A-Fa-f]{2}|\{[A-Za-z0-9_]+(?:,[A-Za-z0-9_]+)*\})*$",
    "json-pointer": r"^(?:/(?:[^/~]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$",
    "idn-hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
    "idn-email": rf"^[A-Za-z0-9_+\-]+(?:\.[A-Za-z0-9_+\-]+)*@{_LABEL}(?:\.{_LABEL})*$",
    "regex": rf"^{_BRANCH}(?:\|{_BRANCH})*$",
}
"""Patterns for formats that the library lacks; each allows only valid texts, though not always all."""

_ASCII_ONLY = frozenset({"iri", "iri-reference", "idn-hostname", "idn-email", "regex"})


def write_format(name: object) -> tuple[str | None, str | None]:
    """Return the pattern of a format, or None for no restriction, and a warning or None.

    A format that JSON Schema does not define is an annotation (JSON Schema 2020-12, Validation, 7.2.3) without effect.
    """
    if name not in PATTERNS:
        return None, f"the format {name!r} is none of JSON Schema's own and says nothing about a text"
    return PATTERNS[str(name)], f"of the format {name!r}, simple texts only are used" if name in _ASCII_ONLY else None


_ENDLESS = 1 << 16
_ANY = r"[\s\S]"
_LITERALS = re.compile(r"(\^?)(\(\?:|\()?((?:[\w ,:;@#%&=<>\"'/~!-]|\\[.$^*+?(){}\[\]|\\/-]|\|)*)(\)?)(\$?)")


@dataclass(slots=True)
class _Node:
    """A node in the trie of texts."""

    ends: bool = False
    nexts: dict[str, _Node] = field(default_factory=dict)


def none_of(texts: Iterable[str]) -> str:
    """Return an anchored pattern for all texts except these."""
    return f"^(?:{_others(_tree(texts), prefixes=False)})$"


def no_prefix_of(texts: Iterable[str]) -> str:
    """Return an anchored pattern for all texts that begin with none of these."""
    tree = _tree(texts)
    return r"^[^\s\S]$" if tree.ends else f"^(?:{_others(tree, prefixes=True)})$"


def literals(pattern: str) -> tuple[list[str], bool] | None:
    """Return the texts of a purely literal pattern, and True for a whole match or False for a prefix.

    Returns None for any other pattern, including one without an anchor at its start.
    """
    parts = _LITERALS.fullmatch(pattern)
    if parts is None:
        return None
    start, opening, body, closing, end = parts.groups()
    if not start or bool(opening) != bool(closing) or ("|" in re.sub(r"\\.", "", body) and not opening):
        return None
    texts = [re.sub(r"\\(.)", r"\1", text) for text in re.split(r"(?<!\\)\|", body)]
    return texts, bool(end)


_ONE_CLASS = re.compile(r"\^(\[\^?(?:\\.|[^\]\\])+\]|\.|\\[dDwWsS])(\+|\*|\?|\{(\d+)(?:(,)(\d*))?\}|)\$")
"""Whole text of characters of one class: the class and the count."""
_DOTS = re.compile(r"\^(\.+)\$")


def unlike(pattern: str) -> tuple[list[dict[str, object]], bool]:
    """Schemas of texts without a match, and True if they cover all such texts."""
    if dots := _DOTS.fullmatch(pattern):
        pattern = f"^.{{{len(dots[1])}}}$"
    if (found := _ONE_CLASS.fullmatch(pattern)) is not None:
        return _unlike_class(*found.groups()), True
    try:
        parsed = _parser.parse(pattern)
        least, most = parsed.getwidth()
    except (re.error, RecursionError, OverflowError):
        return [], False
    others: list[dict[str, object]] = [{"maxLength": int(least) - 1}] if least else []
    whole = pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")
    if whole and most < _ENDLESS and "|" not in re.sub(r"\([^()]*\)", "", pattern):
        others.append({"minLength": int(most) + 1})
    return others, False


def _unlike_class(
    inside: str, count: str, least: str | None, comma: str | None, most: str | None
) -> list[dict[str, object]]:
    """Schemas of texts with other characters or another length."""
    low, high = {"+": (1, None), "*": (0, None), "?": (0, 1), "": (1, 1)}.get(count, (int(least or 0), None))
    if least is not None:
        high = low if comma is None else int(most) if most else None
    outside = {".": "\\n", "\\d": "\\D", "\\D": "\\d", "\\w": "\\W", "\\W": "\\w", "\\s": "\\S", "\\S": "\\s"}.get(
        inside
    )
    if outside is None:
        outside = f"[{inside[2:]}" if inside.startswith("[^") else f"[^{inside[1:]}"
    others: list[dict[str, object]] = [{"pattern": outside}]
    others += [{"maxLength": low - 1}] if low else []
    others += [{"minLength": high + 1}] if high is not None else []
    return others


def _tree(texts: Iterable[str]) -> _Node:
    root = _Node()
    for text in texts:
        node = root
        for character in text:
            node = node.nexts.setdefault(character, _Node())
        node.ends = True
    return root


def _others(node: _Node, *, prefixes: bool) -> str:
    """Return pattern alternatives for all continuations that do not complete a text of the trie."""
    ways = [] if node.ends else [""]
    if not node.nexts:
        return "|".join([*ways, f"{_ANY}+"])
    ways.append(f"[^{''.join(map(_in_class, node.nexts))}]{_ANY}*")
    for character, after in node.nexts.items():
        if not (prefixes and after.ends):
            ways.append(f"{_escaped(character)}(?:{_others(after, prefixes=prefixes)})")
    return "|".join(ways)


def _escaped(character: str) -> str:
    return f"\\{character}" if character in r".^$*+?()[]{}|\/-" else _spelled(character)


def _in_class(character: str) -> str:
    return f"\\{character}" if character in r"\]^[-&~" else _spelled(character)


def _spelled(character: str) -> str:
    return character if character.isprintable() else f"\\x{{{ord(character):x}}}"
