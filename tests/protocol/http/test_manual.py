"""The manual's tables of parameters."""

from __future__ import annotations

from importlib.resources import files

import pytest

from lmtool.protocol.http.anthropic.requests import MessagesRequest
from lmtool.protocol.http.decoding import Body
from lmtool.protocol.http.openai.requests import ChatCompletionRequest, CompletionRequest
from lmtool.protocol.http.responses.requests import ResponsesRequest

PAGE = files("lmtool.docs").joinpath("http.md").read_text("utf-8").partition("## Parameters")[2].partition("\n## ")[0]


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest, ResponsesRequest, MessagesRequest])
def test_every_parameter_is_there(kind: type[Body]) -> None:
    """Each that a route reads, and each that it knows without reading it."""
    missing = [name for name in (*kind.__struct_fields__, *kind.unsupported) if f"`{name}`" not in PAGE]
    assert missing == []
