"""API keys in headers, in a WebSocket's subprotocol and in a URL's query."""

from __future__ import annotations

import base64
import hmac
import json
import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, unquote_plus

from lmtool.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Headers: TypeAlias = "Sequence[tuple[str, str]]"
"""Names in lower case, and values; a name may come more than once."""

KEY_PROTOCOL = "lmtp.key."
"""Begins the subprotocol in which a web page, which can set no header of a WebSocket, sends a key (LMTP, TRA-12)."""
CREDENTIAL_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "set-cookie"}
)
"""Headers that hold secrets and nothing else."""
LEFT_OUT = "***"
"""Stands where a key stood."""
_PROTOCOLS = "sec-websocket-protocol"
_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:(?:api|access|auth|bearer|refresh|session|subscription)?(?:key|token)|auth|authorization|secret"
    r"|password|passwd|signature|sig|credentials?|cookie)$",
    re.IGNORECASE,
)
"""How names end of headers and of a query's parameters that hold secrets, such as `helicone-auth`, `api_key`."""
_CONVERSATION = frozenset({"messages", "input", "prompt", "system", "tools", "functions"})
"""Members of bodies in which a `token` is no key but what is talked about."""
_WITH_URLS = frozenset({"location", "content-location", "referer", "link"})
"""Headers in which a URL, and so a query, may stand."""
_SHORTEST_KEY, _SHORTEST_COOKIE = 8, 16
"""Characters; what is shorter may be part of any text, and is left in bodies."""
_USABLE = re.compile(r"[\x21-\x7e]+")


def values(headers: Headers, name: str) -> list[str]:
    """The values of a header."""
    return [value for key, value in headers if key == name]


def checked_key(key: str) -> str:
    """The key, if every header can carry it. Raises `UsageError`, which does not contain it."""
    if not _USABLE.fullmatch(key):
        raise UsageError(
            "the API key is empty, or has a character that a header cannot carry",
            "one or more ASCII letters, digits and signs, without spaces",
        )
    return key


def has_key(key: str, headers: Headers) -> bool:
    """True if one of the credentials in the headers is this key; constant time for keys of one length."""
    expected = key.encode("ascii")
    return any(hmac.compare_digest(candidate, expected) for candidate in candidate_keys(headers))


def candidate_keys(headers: Headers) -> Iterator[bytes]:
    """All credentials in the headers that may be a key.

    `Authorization` or `Proxy-Authorization` (a bearer's token; both parts of basic credentials), `x-api-key`, and
    subprotocols of a WebSocket.
    """
    for name, value in headers:
        if name in {"authorization", "proxy-authorization"}:
            yield from _authorized(value)
        elif name == "x-api-key":
            yield value.encode("latin-1", "replace")
        elif name == _PROTOCOLS:
            for protocol in _listed(value):
                if protocol.startswith(KEY_PROTOCOL):
                    yield _decoded(protocol.removeprefix(KEY_PROTOCOL))


def _authorized(value: str) -> Iterator[bytes]:
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "bearer":
        yield rest.strip().encode("latin-1", "replace")
    elif scheme.lower() == "basic":
        user, _, password = _decoded(rest.strip()).partition(b":")
        yield user
        yield password


def _decoded(text: str) -> bytes:
    """Base64 in either alphabet, with padding or without; empty where it is none."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return b""


def _listed(value: str) -> list[str]:
    return [one.strip() for one in value.split(",") if one.strip()]


def key_protocol(key: str) -> str:
    """The subprotocol that carries a key."""
    return KEY_PROTOCOL + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def holds_secret(name: str) -> bool:
    """True if a header or a parameter of this name holds a secret; `x-ratelimit-limit-tokens` does not."""
    return name.lower() in CREDENTIAL_HEADERS or _SECRET_NAME.search(name) is not None


def without_credentials(headers: Headers) -> list[tuple[str, str]]:
    """The headers without those that carry keys, and without keys among subprotocols and in URLs."""
    safe = []
    for name, value in headers:
        if name == _PROTOCOLS:
            protocols = [one for one in _listed(value) if not one.startswith(KEY_PROTOCOL)]
            if protocols:
                safe.append((name, ", ".join(protocols)))
        elif name.startswith("sec-websocket-") or not holds_secret(name):
            safe.append((name, without_query_keys(value) if name in _WITH_URLS else value))
    return safe


def without_query_keys(url: str) -> str:
    """A URL or path with `***` for each secret of its query: `/v1/models?key=***&alt=sse`."""
    path, mark, query = url.partition("?")
    if not mark:
        return url
    pairs = [pair.partition("=") for pair in query.split("&")]
    shown = [
        f"{name}={LEFT_OUT}" if value and holds_secret(unquote_plus(name)) else f"{name}{equals}{value}"
        for name, equals, value in pairs
    ]
    return f"{path}?{'&'.join(shown)}"


def secrets_of(headers: Headers, path: str = "") -> set[bytes]:
    """Credentials of a request, as a server might repeat them in an answer; short ones are left out.

    As it is, behind its scheme, JSON-escaped, URL-encoded, in base64.
    """
    found = set(candidate_keys(headers))
    cookies: set[bytes] = set()
    for name, value in headers:
        if name == "cookie":
            cookies.update(part.partition("=")[2].encode("latin-1", "replace") for part in value.split("; "))
        elif not name.startswith("sec-websocket-") and holds_secret(name):
            found |= {part.encode("latin-1", "replace") for part in (value, value.partition(" ")[2].strip())}
    for name, _, value in (pair.partition("=") for pair in path.partition("?")[2].split("&")):
        if holds_secret(unquote_plus(name)):
            found |= {value.encode("latin-1", "replace"), unquote_plus(value).encode("utf-8", "replace")}
    long = {one for one in found if len(one) >= _SHORTEST_KEY}
    long |= {one for one in cookies if len(one) >= _SHORTEST_COOKIE}
    return long | {spelling for one in long for spelling in _spellings(one)}


def secrets_in(body: object) -> set[bytes]:
    """Secrets in the members of a JSON body whose names say that they hold one, also inside of other objects."""
    if not isinstance(body, dict):
        return set()
    inner = (secrets_in(one) for name, one in body.items() if name not in _CONVERSATION)
    pairs = [(name, one) for name, one in body.items() if isinstance(one, str) and holds_secret(name)]
    return secrets_of(pairs).union(*inner)


def _spellings(secret: bytes) -> Iterator[bytes]:
    yield json.dumps(secret.decode("latin-1"))[1:-1].encode()
    yield quote(secret).encode()
    yield base64.b64encode(secret).rstrip(b"=")
