"""What a client reads that was not let in (`lmtool.access`): in the form of the API whose route it asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.http_api.anthropic import errors as anthropic
from lmtool.http_api.errors import ApiError

if TYPE_CHECKING:
    from lmtool.access.policy import Refusal


def refused(path: str, refusal: Refusal) -> tuple[int, bytes]:
    """Status and JSON body of a refusal: Anthropic's below `/messages`, OpenAI's at any other path."""
    error = ApiError(refusal.status, refusal.sentence, code=refusal.reason)
    if path.removeprefix("/v1").startswith("/messages"):
        return anthropic.status(error), json.dumps(anthropic.body(error)).encode()
    return error.status, json.dumps(error.body).encode()
