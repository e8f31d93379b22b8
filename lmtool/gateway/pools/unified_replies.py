"""Answers of the unified API (GEP-0002): whole ones, pieces of streams, errors with their attempts."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.gateway.pools.failures import PoolFailedError
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.providers.answer_events import ROLE, ChatAnswer, ChoiceFinished, TextDelta

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.gateway.pools.failures import Attempt
    from lmtool.gateway.pools.pool_answer import PoolAnswer
    from lmtool.protocol.providers.answer_events import AnswerEvent

_NAMES = {400: "invalid_request", 404: "not_found", 413: "payload_too_large", 501: "not_implemented", 503: "overloaded"}
"""Names of errors by status, where they have none of their own."""
_NO_HEADER = re.compile(r"[^\x20-\x7e]|,")
"""What an outcome cannot have in a header where commas divide attempts."""
_CODES = {"unknown_model": "pool_not_found", "model_not_found": "pool_not_found"}


@dataclass(slots=True)
class Reply:
    """One answer while it grows."""

    answer: PoolAnswer
    id: str = field(default_factory=lambda: f"chat_{uuid.uuid4().hex}")
    created_at: int = field(default_factory=lambda: int(time.time()))
    chat: ChatAnswer = field(default_factory=ChatAnswer)
    attempts_told: int = 0
    """How many calls a header has named; where there were more, the last piece names all."""
    _seams: int = 0
    """How many of the answer's were told."""

    def add(self, events: Sequence[AnswerEvent]) -> None:
        """Take more of the answer."""
        self.chat.add(events)

    async def collect(self) -> None:
        """Take all of the answer. Raises `PoolFailedError`."""
        async with aclosing(self.answer.events()) as events:
            async for some in events:
                self.add(some)

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [one for _, one in sorted(self.chat.choices.items())]
        reply = self.head() | {
            "provider_response": {
                "response_id": self._ids,
                "message": {"role": ROLE, "content": choices[0].content if choices else ""},
                "token_count": self._token_count,
                "finish_reason": choices[0].finish_reason if choices else None,
            }
        }
        if len(choices) > 1:
            reply["provider_response"]["choices"] = [
                {"message": {"role": ROLE, "content": one.content}, "finish_reason": one.finish_reason}
                for one in choices
            ]
        return reply | self._cost

    def pieces(self, events: Sequence[AnswerEvent]) -> Iterator[dict[str, Any]]:
        """The pieces of a streamed answer for more events; `end` is the last one."""
        self.add(events)
        for event in events:
            if isinstance(event, TextDelta) and event.kind != "reasoning" and event.text:
                yield self._piece(event.choice, event.text)

    def end(self) -> dict[str, Any]:
        """The last piece: how the answer ended, and what it took."""
        reason = next((one.finish_reason for one in self.chat.choices.values()), None)
        piece = self._piece(0, "", reason)
        piece["provider_response"]["token_count"] = self._token_count
        if len(self.answer.attempts) > self.attempts_told:
            piece["attempts"] = [asdict(attempt) for attempt in self.answer.attempts]
        return piece | self._cost

    def head(self) -> dict[str, Any]:
        """What all parts have."""
        member = self.answer.member
        return {
            "id": self.id,
            "created_at": self.created_at,
            "provider": None if member is None else member.config.target.name,
            "pool": self.answer.pool.id,
            "model": self._model,
            "model_id": None if member is None else member.id,
            "cached": self.answer.cached,
        }

    @property
    def _model(self) -> str | None:
        member = self.answer.member
        return self.answer.reply.model if member is None or member.config.model is None else member.config.model

    @property
    def _ids(self) -> dict[str, str]:
        """What the provider calls the answer, never empty."""
        return dict(self.answer.reply.ids) or {"id": self.id}

    @property
    def _token_count(self) -> dict[str, int | None]:
        prompt, response = self.answer.usage.prompt_tokens, self.answer.usage.completion_tokens
        total = None if prompt is None or response is None else prompt + response
        return {"prompt_tokens": prompt, "response_tokens": response, "total_tokens": total}

    @property
    def _cost(self) -> dict[str, Any]:
        return {} if self.answer.cost is None else {"cost": round(self.answer.cost, 9)}

    def _piece(self, choice: int, text: str, reason: str | None = None) -> dict[str, Any]:
        message = {"role": ROLE, "content": text}
        place = {"choice": choice} if choice else {}
        return self.head() | {
            "provider_response": {"response_id": self._ids, "message": message, **place},
            "finish_reason": reason,
            **self._seam(),
        }

    def _seam(self) -> dict[str, Any]:
        """Where another member went on, in the first piece behind it."""
        told, self._seams = self._seams, len(self.answer.seams)
        return {"seam": asdict(self.answer.seams[-1])} if self._seams > told else {}


def error_body(error: ApiError | LmtoolError) -> dict[str, Any]:
    """The JSON of an error: `name`, `message`, `attempts`."""
    attempts: Sequence[Attempt] = ()
    if isinstance(error, PoolFailedError):
        name, message, attempts = error.name, error.sentence, error.attempts
    elif isinstance(error, ApiError):
        name, message = (
            _CODES.get(error.code or "") or error.code or _NAMES.get(error.status, "unknown_error"),
            error.message,
        )
    else:
        name, message = _CODES.get(error.code, error.code), error.sentence
    return {"name": name, "message": message, "attempts": [asdict(one) for one in attempts]}


def attempts_header(attempts: Sequence[Attempt]) -> str:
    """Attempts in one line: `main timeout 1200ms, backup ok 86ms`."""
    return ", ".join(f"{one.model} {_NO_HEADER.sub('?', one.outcome)} {one.ms}ms" for one in attempts)


def finished(events: Sequence[AnswerEvent]) -> bool:
    """True if these events end a choice."""
    return any(isinstance(event, ChoiceFinished) for event in events)
