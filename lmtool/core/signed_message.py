"""A turn of a conversation whose thought another API has signed: it is sent back to that API as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.types import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.reasoning import SignedThought


@dataclass(frozen=True, slots=True)
class SignedMessage(ChatMessage):
    """An assistant's turn with signed thoughts. Of no wire of ours but the HTTP APIs': a model is shown `reasoning`."""

    signed_thoughts: tuple[SignedThought, ...] = ()
    """Parts of `reasoning`, from its beginning on."""

    @classmethod
    def of(cls, turn: ChatMessage, thoughts: Sequence[SignedThought]) -> ChatMessage:
        """The turn with these thoughts; without any the turn as it is."""
        if not thoughts:
            return turn
        return cls(turn.role, turn.content, turn.tool_calls, reasoning=turn.reasoning, signed_thoughts=tuple(thoughts))


def signed_thoughts(message: ChatMessage) -> tuple[SignedThought, ...]:
    """Those of a turn; none of most."""
    return message.signed_thoughts if isinstance(message, SignedMessage) else ()
