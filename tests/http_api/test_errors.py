"""Errors in OpenAI's form."""

from __future__ import annotations

import pytest

from lmtool.errors import ContextOverflowError, LmtoolError, OverloadedError, ServerError, UnknownModelError
from lmtool.http_api.errors import ApiError, of


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (ContextOverflowError("too long"), 400, "invalid_request_error", "context_length_exceeded"),
        (UnknownModelError("who"), 404, "not_found_error", "model_not_found"),
        (OverloadedError("busy"), 503, "overloaded_error", "overloaded"),
        (ServerError("broken"), 500, "server_error", "server"),
    ],
)
def test_each_error_has_its_status(error: LmtoolError, status: int, kind: str, code: str) -> None:
    """The status says whose mistake it is; OpenAI's own names are used where it has one."""
    found = of(error, "model")
    assert found.status == status
    assert found.body == {"error": {"message": error.message, "type": kind, "param": "model", "code": code}}


def test_advice_is_part_of_the_message() -> None:
    """There is one place for what to do next."""
    assert of(ServerError("it broke", "try again")).message == "it broke; try again"


def test_a_missing_key_is_not_a_bad_request() -> None:
    """401 has its own type."""
    body = ApiError(401, "no").body
    assert body == {"error": {"message": "no", "type": "authentication_error", "param": None, "code": None}}
