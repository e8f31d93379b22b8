"""The client's side of access: credentials of a URL or key, and the errors of handshakes that failed."""

from __future__ import annotations

import base64
import re
import ssl
from typing import Any
from urllib.parse import unquote, urlsplit

from lmtool.core.errors import AccessDeniedError, ConnectError
from lmtool.net.access.credentials import candidate_keys, checked_key

DENIED = frozenset({401, 403, 421})
"""HTTP statuses of a server that is there and does not let this client in."""
_HINT = "show its key:  --api-key KEY, or LMTOOL_API_KEY in the environment, or connect(..., api_key=KEY)"


def split_url(url: str) -> tuple[str, str | None]:
    """A URL without its `user:password@`, and the `Authorization` header that says the same; None where it has none.

    The scheme may be left out. The URL that is returned may be shown to anyone.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    userinfo, at, host = authority.rpartition("@")
    if not at:
        return url, None
    user, _, password = userinfo.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    without = f"{scheme}{separator}{host}{rest[len(authority) :]}"
    return without, f"Basic {base64.b64encode(pair).decode()}"


def unreadable(url: str, reason: str) -> tuple[str, str]:
    """How an error may name a malformed URL, and the reason, both without possible credentials."""
    _, at, behind = url.rpartition("@")
    if not at:
        return repr(url), reason
    return f"'...@{behind}'", "in credentials / is written %2F, and other signs likewise"


def authorization(url: str, api_key: str | None) -> tuple[str, str | None]:
    """A URL that may be shown, and the `Authorization` header for it: what it says itself, else the key.

    Raises `UsageError` for a key that no header can carry.
    """
    public_url, own = split_url(url)
    if own is None and api_key is not None:
        own = f"Bearer {checked_key(api_key)}"
    return public_url, own


def key_in(authorization: str | None) -> str | None:
    """The key in an `Authorization` header: a bearer's token, a password, or a user's name without one."""
    headers = [] if authorization is None else [("authorization", authorization)]
    return next((key.decode("latin-1") for key in reversed(list(candidate_keys(headers))) if key), None)


def as_headers(authorization: str | None) -> dict[str, str]:
    """The headers of a request with this authorization."""
    return {} if authorization is None else {"Authorization": authorization}


def untrusted(url: str, error: Exception) -> ConnectError:
    """The error for a handshake of TLS that failed: the certificate, or no TLS at all.

    error: of `ssl`, or of aiohttp, which has that in its `certificate_error`.
    """
    error = getattr(error, "certificate_error", error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(
            f"the certificate of the server at {url} is not trusted ({error.verify_message})",
            "if you trust it:  SSL_CERT_FILE=CERTIFICATE.pem in the environment",
        )
    return ConnectError(f"what listens at {url} does not speak TLS", f"write ws://{urlsplit(url).netloc} or http://")


def no_server(url: str, error: Exception, protocol: str, path: str = "/") -> ConnectError:
    """The error for a WebSocket handshake that failed: what is there, and which endpoint to use.

    error: of `websockets`, or the system's. path: where servers have the protocol.
    """
    none = f"no {protocol} server at {url}"
    if isinstance(error, ssl.SSLError):
        return untrusted(url, error)
    if isinstance(error, OSError):
        return ConnectError(f"{none} ({reason_of(error)})")
    if (moved := getattr(error, "uri", url)) != url:
        return ConnectError(f"{none}: it redirects to {moved}", "name that server, if it speaks LMTP:  -e wss://HOST/")
    if (response := getattr(error, "response", None)) is not None:
        return _http_answer(url, response, protocol, path)
    cause = error.__cause__ or error
    if isinstance(cause, EOFError):
        plain = url.startswith("ws://")
        hints = (f"if it is a server with TLS:  -e wss://{urlsplit(url).netloc}/",) if plain else ()
        return ConnectError(f"{none}: what listens there closed the connection without an HTTP answer", *hints)
    return ConnectError(f"{none}: what listens there speaks another protocol ({cause})")


def path_hints(url: str, protocol: str, path: str = "/") -> tuple[str, ...]:
    """The endpoint to use in place of one with another path than the protocol's; empty where it has that path."""
    parts = urlsplit(url)
    if not parts.netloc or parts.path in ("", path):
        return ()
    return (f"{protocol} is at {path}:  -e {parts.scheme}://{parts.netloc}{path}",)


def misses_path(url: str, status: int, body: str, path: str = "/") -> bool:
    """True if a refusal without a body is about the path: servers answer 403 to a WebSocket at an unknown one."""
    return status == 403 and not body.strip() and bool(path_hints(url, "", path))


def _http_answer(url: str, response: Any, protocol: str, path: str) -> ConnectError:  # noqa: ANN401  # websockets is imported where used
    parts, status, none = urlsplit(url), response.status_code, f"no {protocol} server at {url}"
    body = bytes(response.body or b"")[:300].decode("utf-8", "replace").strip()
    if re.search(r"HTTPS|SSL|TLS", body) and status == 400:
        return ConnectError(f"what listens at {url} speaks TLS", f"write wss://{parts.netloc}{parts.path}")
    told = f"HTTP status {status}" + ("" if not body or body.startswith("<") else f": {body}")
    if status in (502, 503, 504):
        return ConnectError(f"{none} now ({told})", "it is behind a proxy that does not reach it: try again")
    if hints := path_hints(url, protocol, path):
        return ConnectError(f"{none}: the path {parts.path} belongs to another protocol, or to none ({told})", *hints)
    return ConnectError(
        f"{none}: what listens there is another HTTP server ({told})", f"name one of {protocol}:  -e ws://HOST:PORT"
    )


def reason_of(error: OSError) -> str:
    """`connection refused`, without what asyncio puts around it."""
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    return (error.strerror or str(error)).lower()


def denied(url: str, status: int, answer: str, *, key_sent: bool) -> AccessDeniedError:
    """The error for a server that answered with one of `DENIED`. key_sent: whether it was sent a key."""
    if status == 401:
        wants = "refuses the API key that it was shown" if key_sent else "asks for an API key"
        return AccessDeniedError(f"the server at {url} {wants}", _HINT)
    reason = f": {answer.strip()[:300]}" if answer.strip() and not answer.strip().startswith("<") else ""
    return AccessDeniedError(f"the server at {url} does not let this client in (HTTP status {status}){reason}")
