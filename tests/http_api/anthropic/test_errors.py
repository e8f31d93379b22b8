"""Errors in Anthropic's form."""

from __future__ import annotations

import pytest

from lmtool.http_api.anthropic.errors import body, status
from lmtool.http_api.errors import ApiError


@pytest.mark.parametrize(
    ("given", "sent", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (404, 404, "not_found_error"),
        (413, 413, "request_too_large"),
        (500, 500, "api_error"),
        (503, 529, "overloaded_error"),
    ],
)
def test_each_error_has_its_type(given: int, sent: int, kind: str) -> None:
    """Anthropic's names, and its status for too much work."""
    error = ApiError(given, "no")
    assert status(error) == sent
    assert body(error) == {"type": "error", "error": {"type": kind, "message": "no"}}
