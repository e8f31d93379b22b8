"""Errors and refusals in OpenAI's form and in Anthropic's."""

from __future__ import annotations

import json
import pickle

import pytest

from lmtool.core.errors import (
    ContextOverflowError,
    LmtoolError,
    OverloadedError,
    ServerError,
    UnknownModelError,
    deadline_error,
)
from lmtool.net.access.policy import AccessPolicy, Refusal, find_refusal
from lmtool.protocol.http.errors import ApiError, from_error, refused


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
    found = from_error(error, "model")
    assert found.status == status
    assert found.body == {"error": {"message": error.message, "type": kind, "param": "model", "code": code}}


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (from_error(OverloadedError("busy")), "1"),
        (ApiError(429, "no"), "1"),
        (ApiError(503, "no", retry_after=7), "7"),
        (from_error(ServerError("broken")), None),
        (ApiError(400, "no"), None),
        (from_error(deadline_error(3)), None),
    ],
)
def test_what_may_be_sent_again_says_when(error: ApiError, seconds: str | None) -> None:
    """`Retry-After` (RFC 9110, 10.2.3) is with 429 and 503, and with nothing that would fail again."""
    assert error.headers.get("retry-after") == seconds
    assert pickle.loads(pickle.dumps(error)).headers == error.headers


def test_a_deadline_is_not_tried_again() -> None:
    """OpenAI's and Anthropic's own clients send a 504 again, but for a header that they know."""
    error = from_error(deadline_error(3))
    assert (error.status, error.anthropic_status, error.body["error"]["code"]) == (504, 504, "timeout")
    assert error.anthropic_body["error"]["type"] == "timeout_error"
    assert error.headers == {"x-should-retry": "false"}


def test_advice_is_part_of_the_message() -> None:
    """There is one place for what to do next."""
    assert from_error(ServerError("it broke", "try again")).message == "it broke; try again"


def test_a_missing_key_is_not_a_bad_request() -> None:
    """401 has its own type."""
    body = ApiError(401, "no").body
    assert body == {"error": {"message": "no", "type": "authentication_error", "param": None, "code": None}}


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
def test_anthropics_types(given: int, sent: int, kind: str) -> None:
    """Anthropic's names, and its status for too much work."""
    error = ApiError(given, "no")
    assert error.anthropic_status == sent
    assert error.anthropic_body == {"type": "error", "error": {"type": kind, "message": "no"}}


def refusal(*headers: tuple[str, str]) -> Refusal:
    decision = find_refusal(AccessPolicy("secret"), headers)
    assert isinstance(decision, Refusal)
    return decision


WRONG_KEY = refusal(("host", "localhost"))
FOREIGN_PAGE = refusal(("host", "localhost"), ("origin", "https://evil.example"))
FOREIGN_HOST = refusal(("host", "evil.example"))


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens"])
def test_anthropics_form(path: str) -> None:
    """Below `/messages`, with and without `/v1`."""
    for why, status, kind in (
        (WRONG_KEY, 401, "authentication_error"),
        (FOREIGN_PAGE, 403, "permission_error"),
        (FOREIGN_HOST, 421, "invalid_request_error"),
    ):
        found, body = refused(path, why)
        error = json.loads(body)
        assert (found, error["type"], error["error"]["type"]) == (status, "error", kind)
        assert error["error"]["message"] == why.sentence


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/models", "/metrics", "/nowhere"])
def test_openais_form(path: str) -> None:
    """At every other path, one that does not exist among them."""
    for why, status, kind in (
        (WRONG_KEY, 401, "authentication_error"),
        (FOREIGN_PAGE, 403, "permission_error"),
        (FOREIGN_HOST, 421, "invalid_request_error"),
    ):
        found, body = refused(path, why)
        error = json.loads(body)["error"]
        assert (found, error["type"], error["code"], error["message"]) == (status, kind, why.reason, why.sentence)
