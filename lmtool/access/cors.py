"""What tells a browser that a page may read answers (Fetch, 3.3): headers for answers and for preflights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.access.credentials import values
from lmtool.access.policy import admitted_origin

if TYPE_CHECKING:
    from lmtool.access.credentials import Headers
    from lmtool.access.policy import AccessPolicy

MAX_AGE = 600
"""Seconds that a browser may keep what a preflight told."""
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_NAMES = re.compile(r"[A-Za-z0-9_.-]+(?:[ \t]*,[ \t]*[A-Za-z0-9_.-]+)*")


def answer_headers(policy: AccessPolicy, headers: Headers) -> list[tuple[str, str]]:
    """Headers for any answer to a request with these headers, refusals included.

    Never with credentials: a key comes from the page itself, and cookies mean nothing here.
    """
    origin = admitted_origin(policy, headers)
    if origin is None:
        return [("vary", "Origin")]
    return [("access-control-allow-origin", "*" if "*" in policy.origins else origin), ("vary", "Origin")]


def preflight_headers(policy: AccessPolicy, headers: Headers) -> list[tuple[str, str]]:
    """Headers for the answer to a preflight that was let in: every method, and the headers that are asked for."""
    headers = list(headers)
    wanted = ", ".join(values(headers, "access-control-request-headers"))
    found = [*answer_headers(policy, headers), ("access-control-allow-methods", _METHODS)]
    if _NAMES.fullmatch(wanted):
        found.append(("access-control-allow-headers", wanted))
    if "true" in values(headers, "access-control-request-private-network"):
        found.append(("access-control-allow-private-network", "true"))
    asked = "Access-Control-Request-Method, Access-Control-Request-Headers"
    return [*found, ("access-control-max-age", str(MAX_AGE)), ("vary", asked)]
