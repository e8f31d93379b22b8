"""Who may watch what other clients say (LMTP, WATCH)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.errors import AccessDeniedError
from lmtool.net.access.forwarding import is_forwarded

if TYPE_CHECKING:
    from lmtool.net.access.caller import Caller
    from lmtool.net.access.credentials import Headers


def watch_refusal(
    caller: Caller | None, headers: Headers, *, everybody: bool, same_user: bool
) -> AccessDeniedError | None:
    """Why a client may not watch; None for one that may.

    The user whose server it is may, over a Unix socket; with the keys of a file who shows one that is marked, and
    without them everybody, where the server was started so. What a proxy passes on is nobody's own.

    caller: whose key the connection has, None where there are no keys of a file.
    """
    if same_user and not is_forwarded(headers):
        return None
    if caller is not None:
        try:
            marked = caller.key.watch
        except AccessDeniedError as withdrawn:
            return withdrawn
        if marked:
            return None
        return AccessDeniedError(f"the key {caller.name} may not watch others", "mark it in its file:  watch = true")
    if everybody:
        return None
    return AccessDeniedError(
        "this server does not let clients watch each other from here",
        "as its own user, on its machine, over its Unix socket; or start it with  --watch",
    )
