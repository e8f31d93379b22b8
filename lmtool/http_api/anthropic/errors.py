"""What went wrong, in Anthropic's form: `{"type": "error", "error": {type, message}}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.http_api.errors import ApiError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    421: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OVERLOADED = 529
"""Anthropic's status for a server that has too much to do."""


def status(error: ApiError) -> int:
    """The HTTP status."""
    return _OVERLOADED if error.status == 503 else error.status


def body(error: ApiError) -> dict[str, object]:
    """The JSON object to send, and the event of a stream that breaks off."""
    return {"type": "error", "error": {"type": _TYPES.get(error.status, "api_error"), "message": error.message}}
