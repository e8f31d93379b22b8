"""`format`: which ones the automata library holds, patterns for further ones, and the rest, which says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HELD = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown",
})  # fmt: skip
"""Formats that llguidance knows."""

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

PATTERNS: Mapping[str, str] = {
    "uri-reference": f"^{_URI_REFERENCE}$",
    "iri-reference": f"^{_URI_REFERENCE}$",
    "iri": rf"^[A-Za-z][A-Za-z0-9+\-.]*:(?://{_HOST_CHAR}+(?::[0-9]+)?)?(?:/?{_PCHAR}+)*/?{_QUERY}$",
    "uri-template": r"^(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#]|%[0-9A-Fa-f]{2}|\{[A-Za-z0-9_]+(?:,[A-Za-z0-9_]+)*\})*$",
    "json-pointer": r"^(?:/(?:[^/~]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$",
    "idn-hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
    "idn-email": rf"^[A-Za-z0-9_+\-]+(?:\.[A-Za-z0-9_+\-]+)*@{_LABEL}(?:\.{_LABEL})*$",
    "regex": r"^(?:[A-Za-z0-9 _,:;@#%&=<>\"'~!-]|\\[.*+?^$|()\[\]{}\\/dDwWsS])*$",
}
"""Formats of JSON Schema that the library lacks; each pattern allows only texts of the format, if not all of them."""

_ASCII_ONLY = frozenset({"iri", "iri-reference", "idn-hostname", "idn-email", "regex"})


def write_format(name: object) -> tuple[str | None, str | None]:
    """Return the pattern that stands for a format (None: none is needed), and what is to be told about it.

    A format that JSON Schema does not define is an annotation (JSON Schema 2020-12, Validation, 7.2.3): it allows
    everything.
    """
    if name not in PATTERNS:
        return None, f"the format {name!r} is none of JSON Schema's own and says nothing about a text"
    return PATTERNS[str(name)], f"of the format {name!r}, simple texts only are used" if name in _ASCII_ONLY else None
