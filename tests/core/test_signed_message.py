"""Turns with signed thoughts."""

from __future__ import annotations

from dataclasses import replace

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.signed_message import SignedMessage, signed_thoughts
from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.lmtp.prompt_payloads import write_prompt

TURN = ChatMessage("assistant", "Yes", (ToolCall("1", "f", "{}"),), reasoning="Hm. So.")


def test_parts_of_a_thought() -> None:
    """A signature is of what was thought since the last one; a redacted part has no text."""
    first = SignedThought.of("Hm. ", (), ThoughtSignature("s"))
    redacted = SignedThought.of("Hm. ", (first,), ThoughtSignature("t", is_redacted=True))
    last = SignedThought.of("Hm. So.", (first, redacted), ThoughtSignature("u"))
    assert [one.text for one in (first, redacted, last)] == ["Hm. ", "", "So."]
    turn = SignedMessage.of(TURN, (first, redacted, last))
    assert signed_thoughts(turn) == (first, redacted, last)
    assert signed_thoughts(replace(turn, content="No")) == (first, redacted, last)
    assert SignedMessage.of(TURN, ()) is TURN
    assert signed_thoughts(TURN) == ()


def test_lmtp_has_no_signatures() -> None:
    """A turn is written there as if nobody had signed it (TXT-2, TXT-7)."""
    signed = SignedMessage.of(TURN, (SignedThought("Hm. So.", ThoughtSignature("s")),))
    [turn] = write_prompt(ChatPrompt((signed,)))["messages"]  # type: ignore[misc] # a list
    assert write_prompt(ChatPrompt((TURN,)))["messages"] == [turn]
    assert (turn["reasoning"], "signed_thoughts" in turn) == ("Hm. So.", False)
    assert write_prompt(ChatPrompt((ChatMessage("user", "Hi"),)))["messages"] == [
        {"role": "user", "content": "Hi", "tool_calls": (), "tool_call_id": None, "name": None, "tokens": None}
    ]
