"""What an audit needs of a wire: questions answered, texts scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lmtool.measure.audit.evidence import Answer, Question

STANDARD = frozenset({"top_p", "presence_penalty", "frequency_penalty", "seed", "n", "stop", "temperature"})
"""Parameters of OpenAI's own API: a server that accepts one and heeds it not, breaks it. Others may be passed over."""


@dataclass(frozen=True, slots=True)
class WireFacts:
    """What was found out of a wire before the audit proper."""

    name: str
    """`completions`, `chat` or `lmtp`."""
    width: int
    """Alternatives that a token has; 0: there are no logprobs."""
    prompts: tuple[str | tuple[int, ...], ...]
    """Three of them; the last one repeats itself."""
    openers: tuple[str | tuple[int, ...], ...] = ()
    """Prompts that many tokens may follow."""
    no_logprobs: str = ""
    """Why there are none; empty where there are."""
    names_ids: bool = False
    """True if tokens are named by their ids."""
    vocab_size: int | None = None
    modes: bool = False
    """True if a request chooses what logprobs are of (LMTP's `logprobs_mode`)."""
    text: bool = True
    """True if answers have text."""
    notes: tuple[str, ...] = field(default_factory=tuple)


class Wire(Protocol):
    """One way to a model."""

    @property
    def facts(self) -> WireFacts:
        """What is known of it."""

    async def ask(self, question: Question) -> Answer:
        """The answer, or the server's refusal. Raises `ConnectError`, `AccessDeniedError`."""

    async def score(self, answer: Answer) -> Answer:
        """The tokens of an answer, scored behind its prompt as the tokens of a choice; or the refusal of that."""
