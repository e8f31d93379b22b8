"""The decision at the door, the same for every protocol: a request's headers in, a client or a refusal out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from lmtool.access.credentials import shows, values
from lmtool.access.names import host_name, is_address, is_loopback, origin_host

if TYPE_CHECKING:
    from lmtool.access.credentials import Headers

Reason: TypeAlias = Literal["invalid_api_key", "foreign_origin", "foreign_host", "invalid_headers"]

_OPEN = re.compile(r"/health[a-z]*(?:/[a-z]+)*")
"""Paths that need no key: probes ask for them under whatever name they know. No dots, so nothing leads out of it."""
_SHOW_IT = "send it as  Authorization: Bearer KEY  or  x-api-key: KEY, or in the URL: http://user:KEY@HOST/"


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What a server asks of requests before it looks at them."""

    key: str | None = field(default=None, repr=False)
    """What clients must show; None: nothing."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use it, beside those of this machine, as browsers spell them; `*`: any."""
    hosts: tuple[str, ...] = ()
    """Names under which it may be asked, beside loopback names and IP addresses, in lower case; `*`: any."""

    def warnings(self, *, public: bool) -> list[str]:
        """What this lets in that a person may not expect. public: other machines can connect."""
        if self.key is not None:
            return []
        found = []
        if public:
            found.append("other machines can connect, and no key is asked for (--no-auth)")
        if "*" in self.origins:
            found.append("every web page may use this server: any origin is allowed, and no key is asked for")
        if "*" in self.hosts:
            found.append("web pages can reach this server by DNS rebinding: any host is allowed, no key is asked for")
        return found


@dataclass(frozen=True, slots=True)
class Client:
    """A request that was let in."""

    address: str = ""
    """Where it came from; empty where that is not known."""
    key_name: str | None = None
    """Which key it showed; None where none was asked for."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not let in."""

    statuses: ClassVar[dict[Reason, int]] = {
        "invalid_api_key": 401,
        "foreign_origin": 403,
        "foreign_host": 421,
        "invalid_headers": 400,
    }
    reason: Reason
    message: str
    hint: str
    """What to do next."""

    @property
    def status(self) -> int:
        """The HTTP status that says the same."""
        return self.statuses[self.reason]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers of an answer that says it over HTTP (RFC 9110, 15.5.2)."""
        return [("www-authenticate", 'Bearer realm="lmtool"')] if self.status == 401 else []

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        return f"{self.message}; {self.hint}"


def admit(
    policy: AccessPolicy, headers: Headers, address: str = "", *, method: str = "", path: str = ""
) -> Client | Refusal:
    """Let a request in or refuse it, by its headers alone: before its body is read and before anything is begun.

    headers: names in lower case; of HTTP, of a WebSocket's handshake, or gRPC metadata (`:authority` is its host).
    method, path: of a plain HTTP request; left out for any other. `/health` and what is below needs nothing, a CORS
    preflight (Fetch, 4.8) no key.
    """
    if method in {"GET", "HEAD"} and _OPEN.fullmatch(path):
        return Client(address)
    headers = list(headers)
    refusal = _host_refusal(policy, headers) or _origin_refusal(policy, headers)
    if refusal is not None:
        return refusal
    if policy.key is None or is_preflight(method, headers):
        return Client(address)
    if shows(policy.key, headers):
        return Client(address, "api_key")
    told = any(values(headers, name) for name in ("authorization", "x-api-key", "proxy-authorization"))
    message = "the key that was shown is not the one of this server" if told else "this server asks for a key"
    return Refusal("invalid_api_key", message, _SHOW_IT)


def _host_refusal(policy: AccessPolicy, headers: Headers) -> Refusal | None:
    """A page whose own name was made to point here (DNS rebinding) tells that name as `Host`: so only known ones."""
    given = _hosts(headers)
    if len(given) != 1:
        return Refusal("invalid_headers", f"a request has one Host header, this one {len(given)}", "send one")
    name = host_name(given[0])
    if name is None:
        return Refusal("invalid_headers", f"{given[0][:100]!r} is no Host", "send HOST:PORT")
    if "*" in policy.hosts or name in policy.hosts or is_loopback(name) or is_address(name):
        return None
    message = f"this server is not known to be called {name[:100]!r}"
    return Refusal("foreign_host", message, f"if that is a name of it, start it with  --allow-host {name[:100]}")


def _origin_refusal(policy: AccessPolicy, headers: Headers) -> Refusal | None:
    """Programs send no `Origin`; what pages may do without telling theirs, browsers mark by `Sec-Fetch-Site`."""
    given = values(headers, "origin")
    if len(given) > 1:
        return Refusal("invalid_headers", f"a request has one Origin header at most, this one {len(given)}", "send one")
    if given and admitted_origin(policy, headers) is None:
        message = f"web pages of {given[0][:100]!r} may not use this server"
        return Refusal("foreign_origin", message, f"to let them, start it with  --allow-origin {given[0][:100]}")
    if not given and "cross-site" in values(headers, "sec-fetch-site") and "*" not in policy.origins:
        message = "a web page of another site led here, and may not use this server"
        return Refusal("foreign_origin", message, "type the address yourself")
    return None


def admitted_origin(policy: AccessPolicy, headers: Headers) -> str | None:
    """The origin of the page that asks, if it may use the server; None for other pages, and for programs.

    A page may when it comes from this machine, is allowed by name, or comes from the host that it asks, where that is a
    right one. `null`, the origin of files and sandboxed frames, is foreign.
    """
    headers = list(headers)
    for origin in values(headers, "origin"):
        page = origin_host(origin)
        if "*" in policy.origins or origin.lower() in policy.origins:
            return origin
        if page is not None and (is_loopback(page) or page == _right_host(policy, headers)):
            return origin
    return None


def _right_host(policy: AccessPolicy, headers: Headers) -> str | None:
    """The name that is asked for, where it is one of this server's."""
    headers = list(headers)
    return None if _host_refusal(policy, headers) else host_name(_hosts(headers)[0])


def _hosts(headers: Headers) -> list[str]:
    headers = list(headers)
    return [*values(headers, "host"), *values(headers, ":authority")]


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether a browser asks what a page may do, before the page does anything."""
    headers = list(headers)
    return method == "OPTIONS" and all(values(headers, n) for n in ("origin", "access-control-request-method"))
