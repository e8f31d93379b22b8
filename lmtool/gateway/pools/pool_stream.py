"""A request to a pool as a stream of the model interface: its events become outputs with text and without ids."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import TYPE_CHECKING, cast, get_args

from lmtool.core.errors import LmtoolError, ServerError
from lmtool.core.interfaces import client_of
from lmtool.core.streams import failure
from lmtool.core.types import FinishReason, GenerateRequest, NamedToken, TokenOutput, ToolCallPart, Usage
from lmtool.gateway.pools.caller import Caller
from lmtool.gateway.pools.failures import PoolFailedError
from lmtool.gateway.pools.pool_answer import begin_answer
from lmtool.gateway.pools.pool_request import from_stream
from lmtool.gateway.pools.unified_replies import attempts_header
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.interfaces import Sink
    from lmtool.core.seam import Seam
    from lmtool.core.types import ScoreRequest, StreamId
    from lmtool.gateway.pools.pool import Pool
    from lmtool.gateway.pools.pool_answer import PoolAnswer
    from lmtool.protocol.providers.answer_events import AnswerEvent, ChunkToken, Piece

current_answers: ContextVar[list[PoolAnswer] | None] = ContextVar("current_answers", default=None)
"""Where the answers of the HTTP request that is being served are noted, for its headers."""
_REASONS = get_args(FinishReason)
_log = logging.getLogger(__name__)


class PoolStream:
    """The handle of one stream; see `interfaces.StreamHandle`."""

    def __init__(self, pool: Pool, request: GenerateRequest | ScoreRequest, sink: Sink) -> None:
        """Start the stream; nothing reaches the sink before this has returned."""
        self._sink = sink
        self._stream_id = request.stream_id
        self._running = asyncio.Event()
        self._running.set()
        self._cancelled = False
        self._task = asyncio.get_running_loop().create_task(self._run(pool, request))

    def cancel(self) -> None:
        """End the stream, and the call of the provider."""
        if not self._cancelled and not self._task.done():
            self._cancelled = True
            self._task.cancel()

    def pause(self) -> None:
        """Read nothing more from the provider until `resume`."""
        self._running.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._running.set()

    async def _run(self, pool: Pool, request: GenerateRequest | ScoreRequest) -> None:
        try:
            last = await self._stream(pool, request)
        except PoolFailedError as error:
            last = replace(failure(self._stream_id, error), attempts=attempts_header(error.attempts))
        except asyncio.CancelledError:
            last = TokenOutput(self._stream_id, finish_reason="cancelled")
        except LmtoolError as error:
            last = failure(self._stream_id, error)
        except Exception:  # noqa: BLE001  # a fault of ours: the stream ends all the same, and the log has it
            _log.exception("an answer of the pool %s failed", pool.id)
            last = failure(self._stream_id, ServerError("an error of the gateway itself", "its log has more"))
        self._sink([last])

    async def _stream(self, pool: Pool, request: GenerateRequest | ScoreRequest) -> TokenOutput:
        """Pass the outputs on; return the last one. Raises `LmtoolError`."""
        caller = Caller(client_of(self._sink), request.deadline, counted=True)
        answer = begin_answer(pool, from_stream(request), caller)
        noted = current_answers.get()
        if noted is not None:
            noted.append(answer)
        shows_reasoning = isinstance(request, GenerateRequest) and request.reasoning is not None
        outputs = Outputs(self._stream_id, answer, shows_reasoning=shows_reasoning)
        async with aclosing(answer.events()) as events:
            async for some in events:
                await self._running.wait()
                if made := outputs.of(some):
                    self._sink(made)
        return outputs.last()


class Outputs:
    """The outputs of one answer's first choice."""

    def __init__(self, stream_id: StreamId, answer: PoolAnswer, *, shows_reasoning: bool = False) -> None:
        """shows_reasoning: whether the request asks for what members think, see `GenerateRequest.reasoning`."""
        self._stream_id = stream_id
        self._shows_reasoning = shows_reasoning
        self._answer = answer
        self._seams = 0
        """How many of the answer's were told."""
        self._calls: dict[int, int] = {}
        """Numbers of calls from 0 on, by those of the provider, which may number other parts among them."""
        self._finished = ChoiceFinished(0, "stop")

    def of(self, events: Sequence[AnswerEvent]) -> list[TokenOutput]:
        """What these events come to; reasoning is not part of the text, and left out where nobody asks for it."""
        outputs = []
        for event in events:
            if isinstance(event, TextDelta) and event.kind == "reasoning":
                if self._shows_reasoning:
                    thought = TokenOutput(self._stream_id, text="", reasoning=event.text, signature=event.signature)
                    outputs.append(thought)
            elif isinstance(event, TextDelta):
                tokens = tuple(map(_named, event.tokens))
                outputs.append(TokenOutput(self._stream_id, text=event.text, named_tokens=tokens))
            elif isinstance(event, ToolCallDelta):
                index = self._calls.setdefault(event.index, len(self._calls))
                part = ToolCallPart(index, event.id, event.name, event.arguments)
                outputs.append(TokenOutput(self._stream_id, text="", tool_calls=(part,)))
            elif isinstance(event, ChoiceFinished):
                self._finished = event
        return [replace(outputs[0], seam=self._seam()), *outputs[1:]] if outputs else []

    def _seam(self) -> Seam | None:
        """Where another member went on, for the first output behind it."""
        told, self._seams = self._seams, len(self._answer.seams)
        return self._answer.seams[-1] if self._seams > told else None

    def last(self) -> TokenOutput:
        """The output that ends the stream."""
        answer = self._answer
        reason = "stop" if self._finished.reason == "tool_calls" else self._finished.reason
        usage = answer.usage
        counts = Usage(**{one.name: getattr(usage, one.name) or 0 for one in fields(Usage)})
        return TokenOutput(
            self._stream_id,
            text="",
            finish_reason=cast("FinishReason", reason if reason in _REASONS else "stop"),
            usage=counts,
            stopped_by=self._finished.stop,
            attempts=attempts_header(answer.attempts),
            seam=self._seam(),
        )


def _named(token: ChunkToken) -> NamedToken:
    return NamedToken(
        _bytes(token.piece), token.logprob, tuple((_bytes(piece), logprob) for piece, logprob in token.alternatives)
    )


def _bytes(piece: Piece) -> bytes:
    return piece.encode("utf-8", "replace") if isinstance(piece, str) else piece
