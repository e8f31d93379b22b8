"""How a member is called: a backend gives the events of one answer, or says how the call failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lmtool.gateway.pools.caller import Caller
from lmtool.net.telemetry.trace_context import current_trace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from collections.abc import Set as AbstractSet

    from lmtool.core.outcomes import Outcome
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.gateway.pools.token_stream import TokenStream
    from lmtool.net.telemetry.trace_context import TraceContext
    from lmtool.protocol.providers.answer_events import AnswerEvent

MAX_ANSWER_BYTES = 32 << 20
"""Of a provider's answer; a longer one counts as malformed."""


class CallFailedError(Exception):
    """A call that gave no answer, or broke off."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.words)
        self.outcome = outcome


@dataclass(slots=True)
class Reply:
    """What a provider says about its answer beside its events, and what a call of it goes by."""

    ids: dict[str, str] = field(default_factory=dict)
    """What it calls the answer, by the unified API's names."""
    model: str | None = None
    """The model that answered, as it names it."""
    stream: TokenStream | None = None
    """Of one of our models, for a member with the same fingerprint to go on with; to be closed."""
    must_resume: bool = False
    """True if part of the answer was given out, so that it cannot begin anew."""
    caller: Caller = field(default_factory=Caller)
    refused: AbstractSet[str] = frozenset()
    """Fingerprints of our own models that have refused the request: others with one of these would do so as well."""
    refused_by: str | None = None
    """The fingerprint of our own model that refused it now."""
    trace_context: TraceContext | None = field(default_factory=current_trace.get)
    """The place of the call in a trace, which is sent to the provider."""


class Backend(Protocol):
    """One member's provider. Each call takes one request."""

    def lacks(self, request: PoolRequest) -> Sequence[str]:
        """What of the request it cannot do, by name; empty where it can do all of it."""

    resumes: bool
    """True if it can go on with the stream of another member, token for token."""

    def answer(self, request: PoolRequest, reply: Reply) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the answer, those that arrive together as one list; never an `AnswerFailed`.

        With `request.prefill` those of the rest of an answer, which may be empty. With `reply.stream` those of the rest
        of that stream, where this member can bring it. Closing the generator ends the call at the provider. Fills
        `reply`. Raises `CallFailedError`, also for an answer that is empty or does not end, and `RequestError` for
        what it cannot express.
        """

    async def close(self) -> None:
        """Close its connections."""
