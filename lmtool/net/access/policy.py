"""Access decisions, the same for every protocol: a request's headers in, a refusal or CORS headers out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from lmtool.net.access.credentials import candidate_keys, has_key, values
from lmtool.net.access.forwarding import TrustedProxies, is_forwarded
from lmtool.net.access.names import host_name, is_address, is_loopback, origin_host

if TYPE_CHECKING:
    from lmtool.core.errors import RateLimitError
    from lmtool.net.access.caller import Callers
    from lmtool.net.access.credentials import Headers

Reason: TypeAlias = Literal[
    "invalid_api_key", "foreign_origin", "foreign_host", "forwarded", "invalid_headers", "rate_limit_exceeded"
]

_OPEN = re.compile(r"/health[a-z]*(?:/[a-z]+)*")
"""Paths that need no key: probes ask for them under whatever name they know. No dots, so nothing leads out of it."""
MAX_AGE = 600
"""Seconds for which a browser may keep the answer to a preflight."""
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_.-]+(?:[ \t]*,[ \t]*[A-Za-z0-9_.-]+)*")
_SEND_KEY = "send it as  Authorization: Bearer KEY  or  x-api-key: KEY, or in the URL: http://user:KEY@HOST/"


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What a server requires of requests before it handles them."""

    key: str | None = field(default=None, repr=False)
    """API key that clients must send; None: none."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use it, beside those of this machine, as browsers spell them; `*`: any."""
    hosts: tuple[str, ...] = ()
    """Host names of the server, beside loopback names and IP addresses, in lower case; `*`: any."""
    callers: Callers | None = field(default=None, repr=False)
    """The keys of a file, one of which clients must send, and what they use; None: there is no file."""
    loopback_only: bool = False
    """True if it is open because only this machine can connect: what a proxy passes on is refused."""
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """Whose word is taken for where a request comes from."""

    def warnings(self, *, public: bool) -> list[str]:
        """Sentences about what this admits that a person may not expect. public: other machines can connect."""
        if self.key is not None or self.callers is not None:
            return []
        found: list[str] = []
        if public:
            found.append("other machines can connect, and no key is asked for (--no-auth)")
        if "*" in self.origins:
            found.append("every web page may use this server: any origin is allowed, and no key is asked for")
        if "*" in self.hosts:
            found.append("web pages can reach this server by DNS rebinding: any host is allowed, no key is asked for")
        return found


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request."""

    statuses: ClassVar[dict[Reason, int]] = {
        "invalid_api_key": 401,
        "foreign_origin": 403,
        "foreign_host": 421,
        "forwarded": 403,
        "invalid_headers": 400,
        "rate_limit_exceeded": 429,
    }
    reason: Reason
    message: str
    hint: str
    """What to do next."""
    retry_after: int = 0
    """Seconds after which the same request may be let in; 0: not known."""
    key: str = ""
    """The name of the key of a request that is above a limit."""

    @classmethod
    def of_limit(cls, error: RateLimitError, key: str = "") -> Refusal:
        """The refusal of a request that is above a limit of its key or address. key: the name of its key."""
        return cls("rate_limit_exceeded", error.message, "; ".join(error.hints), error.retry_after, key)

    @property
    def status(self) -> int:
        """The HTTP status that says the same."""
        return self.statuses[self.reason]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers of an answer that says it over HTTP (RFC 9110, 15.5.2 and 10.2.3)."""
        if self.retry_after:
            return [("retry-after", str(self.retry_after))]
        return [("www-authenticate", 'Bearer realm="lmtool"')] if self.status == 401 else []

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        return f"{self.message}; {self.hint}"


def find_refusal(policy: AccessPolicy, headers: Headers, *, method: str = "", path: str = "") -> Refusal | None:
    """Why a request is refused, by its headers alone, before its body is read; None for one that is admitted.

    headers: names in lower case; of HTTP, of a WebSocket's handshake, or gRPC metadata (`:authority` is its host).
    method, path: of a plain HTTP request; left out for any other. `/health` and what is below needs nothing, a CORS
    preflight (Fetch, 4.8) no key.
    """
    if is_open(method, path):
        return None
    refusal = _host_refusal(policy, headers) or _origin_refusal(policy, headers)
    if refusal is not None:
        return refusal
    if policy.loopback_only and is_forwarded(headers):
        message = "a proxy has passed this request on, and this server asks for no key: it is for its machine alone"
        return Refusal("forwarded", message, "start it with  --api-key KEY  or  --api-keys FILE, or with  --no-auth")
    if is_preflight(method, headers) or _shows_key(policy, headers):
        return None
    sent = any(values(headers, name) for name in ("authorization", "x-api-key", "proxy-authorization"))
    message = "the key that was shown is not the one of this server" if sent else "this server asks for a key"
    return Refusal("invalid_api_key", message, _SEND_KEY)


def _shows_key(policy: AccessPolicy, headers: Headers) -> bool:
    """True if a request has the key that it needs."""
    if policy.callers is not None:
        return policy.callers.ring.find(candidate_keys(headers)) is not None
    return policy.key is None or has_key(policy.key, headers)


def is_open(method: str, path: str) -> bool:
    """True if a path is for everybody: the state of the server, which probes ask for."""
    return method in {"GET", "HEAD"} and _OPEN.fullmatch(path) is not None


def _host_refusal(policy: AccessPolicy, headers: Headers) -> Refusal | None:
    """Only known names: a page whose own name points here (DNS rebinding) sends that name as `Host`."""
    hosts = _hosts(headers)
    if len(hosts) != 1:
        return Refusal("invalid_headers", f"a request has one Host header, this one {len(hosts)}", "send one")
    name = host_name(hosts[0])
    if name is None:
        return Refusal("invalid_headers", f"{hosts[0][:100]!r} is no Host", "send HOST:PORT")
    if "*" in policy.hosts or name in policy.hosts or is_loopback(name) or is_address(name):
        return None
    message = f"this server is not known to be called {name[:100]!r}"
    return Refusal("foreign_host", message, f"if that is a name of it, start it with  --allow-host {name[:100]}")


def _origin_refusal(policy: AccessPolicy, headers: Headers) -> Refusal | None:
    """Programs send no `Origin`; where pages need not send theirs, browsers send `Sec-Fetch-Site`."""
    origins = values(headers, "origin")
    if len(origins) > 1:
        message = f"a request has one Origin header at most, this one {len(origins)}"
        return Refusal("invalid_headers", message, "send one")
    if origins and admitted_origin(policy, headers) is None:
        message = f"web pages of {origins[0][:100]!r} may not use this server"
        return Refusal("foreign_origin", message, f"to let them, start it with  --allow-origin {origins[0][:100]}")
    if not origins and "cross-site" in values(headers, "sec-fetch-site") and "*" not in policy.origins:
        message = "a web page of another site led here, and may not use this server"
        return Refusal("foreign_origin", message, "type the address yourself")
    return None


def admitted_origin(policy: AccessPolicy, headers: Headers) -> str | None:
    """The origin of the page that sent a request, if it may use the server; None for other pages, and for programs.

    A page may if it comes from this machine, is allowed by name, or comes from the host that it connects to, where that
    is the server's. `null`, the origin of files and sandboxed frames, is foreign. Behind a proxy `localhost` is not
    this machine.
    """
    for origin in values(headers, "origin"):
        page = origin_host(origin)
        if "*" in policy.origins or origin.lower() in policy.origins:
            return origin
        if page is not None and is_loopback(page) and not is_forwarded(headers):
            return origin
        if page is not None and not _host_refusal(policy, headers) and page == host_name(_hosts(headers)[0]):
            return origin
    return None


def _hosts(headers: Headers) -> list[str]:
    return [*values(headers, "host"), *values(headers, ":authority")]


def is_preflight(method: str, headers: Headers) -> bool:
    """True if a browser checks what a page may do, before the page does it (CORS)."""
    return method == "OPTIONS" and all(values(headers, n) for n in ("origin", "access-control-request-method"))


def answer_headers(policy: AccessPolicy, headers: Headers) -> list[tuple[str, str]]:
    """CORS headers (Fetch, 3.3) of any answer to a request with these headers, refusals included.

    Never with credentials: a key comes from the page itself, and cookies mean nothing here.
    """
    origin = admitted_origin(policy, headers)
    if origin is None:
        return [("vary", "Origin")]
    return [("access-control-allow-origin", "*" if "*" in policy.origins else origin), ("vary", "Origin")]


def preflight_headers(policy: AccessPolicy, headers: Headers) -> list[tuple[str, str]]:
    """CORS headers of the answer to an admitted preflight: every method, and the requested headers."""
    requested = ", ".join(values(headers, "access-control-request-headers"))
    answer = [*answer_headers(policy, headers), ("access-control-allow-methods", _METHODS)]
    if _HEADER_NAMES.fullmatch(requested):
        answer.append(("access-control-allow-headers", requested))
    if "true" in values(headers, "access-control-request-private-network"):
        answer.append(("access-control-allow-private-network", "true"))
    vary = "Access-Control-Request-Method, Access-Control-Request-Headers"
    return [*answer, ("access-control-max-age", str(MAX_AGE)), ("vary", vary)]
