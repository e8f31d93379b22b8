"""Refusals at the door, in the form of each API."""

from __future__ import annotations

import json

import pytest

from lmtool.access.policy import AccessPolicy, Refusal, admit
from lmtool.http_api.refusals import refused


def refusal(*headers: tuple[str, str]) -> Refusal:
    decision = admit(AccessPolicy("secret"), headers)
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
