"""Errors of the HTTP APIs: status, headers, and JSON body in OpenAI's or Anthropic's form."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.core.errors import LmtoolError
    from lmtool.net.access.policy import Refusal

_STATUS = {
    "unknown_model": 404,
    "model_load": 404,
    "access_denied": 401,
    "rate_limit_exceeded": 429,
    "overloaded": 503,
    "connection": 503,
    "server": 500,
    "invalid_answer": 500,
    "out_of_memory": 500,
    "error": 500,
    "timeout": 504,
}
"""HTTP status by `LmtoolError.code`; other codes blame the request: 400."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = _TYPES | {400: "invalid_request_error", 413: "request_too_large", 421: "invalid_request_error"}
_TIME_OVER = 504
_RETRY_AFTER = {429: 1, 503: 1}
"""Default `Retry-After` in seconds, by status."""
_CODES = {"context_overflow": "context_length_exceeded", "unknown_model": "model_not_found"}
"""OpenAI's names for error codes."""


class ApiError(Exception):
    """An error response to a request."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        """status: HTTP status. param: member of the request at fault. retry_after: seconds; 0: the status's default."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all arguments; the default would lose all but the message."""
        again = partial(ApiError, param=self.param, code=self.code, retry_after=self.retry_after)
        return again, (self.status, self.message), self.__dict__

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in seconds (RFC 9110, 10.2.3) if the request may be retried.

        After a deadline it may not; `x-should-retry` stops the SDKs of OpenAI and Anthropic from retrying.
        """
        if self.status == _TIME_OVER:
            return {"x-should-retry": "false"}
        seconds = self.retry_after or _RETRY_AFTER.get(self.status, 0)
        return {"retry-after": str(seconds)} if seconds else {}

    @property
    def body(self) -> dict[str, object]:
        """JSON object in OpenAI's form."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def anthropic_status(self) -> int:
        """HTTP status in Anthropic's API, which has its own for an overloaded server."""
        return 529 if self.status == 503 else self.status

    @property
    def anthropic_body(self) -> dict[str, object]:
        """JSON object in Anthropic's form; also the error event of a stream."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def api_error(message: str, code: str | None, retry_after: int = 0) -> ApiError:
    """Error for a stream that ended with this message, `LmtoolError.code` and retry delay in seconds."""
    status = _STATUS.get(code or "", 400)
    return ApiError(status, message, code=_CODES.get(code or "", code), retry_after=retry_after)


def from_error(error: LmtoolError, param: str | None = None) -> ApiError:
    """HTTP error for an `LmtoolError`. param: field of the request at fault."""
    converted = api_error(error.sentence, error.code, error.retry_after)
    converted.param = param
    return converted


def refused(path: str, refusal: Refusal) -> tuple[int, bytes]:
    """Status and JSON body of a rejection by `lmtool.net.access`."""
    return answer_of(path, ApiError(refusal.status, refusal.sentence, code=refusal.reason))


def answer_of(path: str, error: ApiError) -> tuple[int, bytes]:
    """Status and JSON body of an error: in Anthropic's form below `/messages`, in OpenAI's elsewhere."""
    if path.removeprefix("/v1").startswith("/messages"):
        return error.anthropic_status, json.dumps(error.anthropic_body).encode()
    return error.status, json.dumps(error.body).encode()
