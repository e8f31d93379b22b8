"""What went wrong, in OpenAI's form: `{"error": {message, type, param, code}}` and an HTTP status."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.errors import LmtoolError

_STATUS = {
    "unknown_model": 404,
    "model_load": 404,
    "overloaded": 503,
    "connection": 503,
    "server": 500,
    "invalid_answer": 500,
    "out_of_memory": 500,
    "error": 500,
}
"""`LmtoolError.code` to status; every other one is the client's: 400."""
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "overloaded_error"}
_CODES = {"context_overflow": "context_length_exceeded", "unknown_model": "model_not_found"}
"""Where OpenAI has a name of its own."""


class ApiError(Exception):
    """A request that is answered with an error instead of a completion."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """status: of HTTP. param: the member of the request that is to blame."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        """How it is pickled: other arguments than the message would be lost."""
        return partial(ApiError, param=self.param, code=self.code), (self.status, self.message), self.__dict__

    @property
    def body(self) -> dict[str, object]:
        """The JSON object to send."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(message: str, code: str | None) -> ApiError:
    """The error for a stream that ended with this sentence and this `LmtoolError.code`."""
    return ApiError(_STATUS.get(code or "", 400), message, code=_CODES.get(code or "", code))


def of(error: LmtoolError, param: str | None = None) -> ApiError:
    """The same error for this API."""
    found = api_error("; ".join((error.message, *error.hints)), error.code)
    found.param = param
    return found
