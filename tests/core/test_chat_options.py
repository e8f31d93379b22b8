"""What a chat asks of a model without ids."""

from __future__ import annotations

from lmtool.core.chat_options import ChatOptions
from lmtool.core.types import GenerateRequest


def test_defaults() -> None:
    """Nothing is set, nothing must be called, and the answer is read as it comes."""
    options = ChatOptions()
    assert (options.parameters, options.tool_choice, options.logprobs) == (frozenset(), None, None)
    assert options.stream
    assert GenerateRequest(1, ()).chat is None
