"""Events of one response, in order; the last event contains the whole response."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lmtool.protocol.http.openai.replies import chat_logprobs
from lmtool.protocol.http.responses.requests import (
    ThoughtKind,
    encrypted,
    fresh,
    function_call,
    message,
    part,
    reasoning,
    reasoning_part,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.core.interfaces import Tokenizer
    from lmtool.core.reasoning import ThoughtSignature
    from lmtool.core.types import TokenOutput, Usage
    from lmtool.protocol.http.answers import Answer
    from lmtool.protocol.http.errors import ApiError
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.tools.feed import Delta


class ThoughtEvents(NamedTuple):
    """Names of the events for a thought, by its position in the item."""

    kind: ThoughtKind
    text: str
    """Event for the text."""
    part: str
    """Event for the part that contains the text."""
    place: str
    """Member with the part's index."""


CONTENTS = ThoughtEvents("reasoning_text", "reasoning_text", "content_part", "content_index")
SUMMARIES = ThoughtEvents("summary_text", "reasoning_summary_text", "reasoning_summary_part", "summary_index")
"""Used if a summary is requested."""
_THOUGHT = -1
"""Value of `Response._call` while the open item is a thought."""
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of incomplete answers, and the API's names for them."""


@dataclass(slots=True)
class Response:
    """Writes the events of one response."""

    answer: Answer
    model: str
    repeated: Mapping[str, Any]
    tokenizer: Tokenizer | None = None
    """Decodes tokens for logprobs."""
    prompt_ids: Sequence[int] | None = None
    """Token ids of the prompt, if the request asks for ids."""
    tokens_as_ids: bool = False
    """True if logprobs show token ids in place of texts."""
    id: str = field(default_factory=lambda: fresh("resp"))
    created: int = field(default_factory=lambda: int(time.time()))
    output: list[dict[str, Any]] = field(default_factory=list)
    """Completed items."""
    _sent: int = 0
    _open: str | None = None
    """Id of the open item; None: no open item."""
    _call: int | None = None
    """Index of the call that the open item is, or `_THOUGHT`; None: it is the message."""
    _text: str = ""
    _logprobs: list[Any] = field(default_factory=list)

    def start(self) -> Iterator[Event]:
        """The first events."""
        yield self._event("response.created", response=self._whole("in_progress"))
        yield self._event("response.in_progress", response=self._whole("in_progress"))

    def add(self, output: TokenOutput, added: Sequence[Delta]) -> Iterator[Event]:
        """Events for an output and its deltas."""
        for at, event in enumerate(self._added(output, added)):
            yield event if at else event | self.answer.seam_field

    def _added(self, output: TokenOutput, added: Sequence[Delta]) -> Iterator[Event]:
        logprobs = self._spelt(output)
        for delta in added:
            if delta.reasoning:
                yield from self._add_thought(delta.reasoning)
            elif delta.call is None:
                yield from self._add_text(delta.text, logprobs)
                logprobs = []
            else:
                yield from self._add_call(delta)
        if self._call is None:
            self._logprobs += logprobs  # of a token that ends inside a character
        if self.answer.new_signature is not None:
            yield from self._sign(self.answer.new_signature)

    def _sign(self, signature: ThoughtSignature) -> Iterator[Event]:
        """Events that end a thought signed by a pool member; a redacted thought gets an item of its own."""
        if signature.is_redacted:
            yield from self._close()
        if self._open is None or self._call != _THOUGHT:
            yield from self._begin_thought()
        yield from self._close(signature=encrypted(signature))

    def end(self, usage: Usage) -> Iterator[Event]:
        """Events at the end of an answer."""
        if self._open is None and all(item["type"] == "reasoning" for item in self.output) and not self._cut_short:
            yield from self._add_text("", [])
        status = "incomplete" if self.answer.ended in _CUT else "completed"
        yield from self._close(status)
        if self.prompt_ids is not None:  # so that the message has them when sent back as input
            visible = [item for item in self.output if item["type"] != "reasoning"] or self.output
            visible[0]["token_ids"] = self.answer.token_ids
        yield self._event(f"response.{status}", response=self._whole(status, usage), **self.answer.seam_field)

    def failed(self, error: ApiError) -> Event:
        """Last event of an answer that failed."""
        whole = self._whole("failed") | {"error": {"code": error.code or "server_error", "message": error.message}}
        return self._event("response.failed", response=whole)

    @property
    def _cut_short(self) -> bool:
        """True if the answer was cut off during the thought."""
        return self.answer.ended in _CUT and bool(self.output)

    def _spelt(self, output: TokenOutput) -> list[Any]:
        if output.reasoning is not None:  # the API has no logprobs for thoughts
            return []
        if self.answer.logprobs is None or not (output.named_tokens or (self.tokenizer and output.token is not None)):
            return []
        logprobs: list[Any] = chat_logprobs([output], self.tokenizer, self.answer.logprobs, as_ids=self.tokens_as_ids)[
            "content"
        ]
        return logprobs

    def _add_text(self, text: str, logprobs: list[Any]) -> Iterator[Event]:
        if self._open is None or self._call is not None:
            yield from self._close()
            self._open, self._call = fresh("msg"), None
            item = message(self._open, "in_progress", [])
            yield self._event("response.output_item.added", output_index=len(self.output), item=item)
            yield self._event("response.content_part.added", **self._place, content_index=0, part=part(""))
        self._text += text
        self._logprobs += logprobs
        if text or logprobs:
            fields = {"content_index": 0, "delta": text, "logprobs": logprobs}
            yield self._event("response.output_text.delta", **self._place, **fields)

    def _add_thought(self, text: str) -> Iterator[Event]:
        if self._open is None or self._call != _THOUGHT:
            yield from self._begin_thought()
        if not self._text:
            yield self._of_thought(f"{self._thoughts.part}.added", part=reasoning_part("", self._thoughts.kind))
        self._text += text
        yield self._of_thought(f"{self._thoughts.text}.delta", delta=text)

    def _begin_thought(self) -> Iterator[Event]:
        yield from self._close()
        self._open, self._call = fresh("rs"), _THOUGHT
        item = reasoning(self._open, "in_progress", "", self._thoughts.kind)
        yield self._event("response.output_item.added", output_index=len(self.output), item=item)

    def _of_thought(self, kind: str, **members: Any) -> Event:  # noqa: ANN401  # JSON
        return self._event(f"response.{kind}", **self._place, **{self._thoughts.place: 0}, **members)

    @property
    def _thoughts(self) -> ThoughtEvents:
        return SUMMARIES if (self.repeated.get("reasoning") or {}).get("summary") else CONTENTS

    def _add_call(self, delta: Delta) -> Iterator[Event]:
        if self._call != delta.call:
            yield from self._close()
            self._open, self._call = fresh("fc"), delta.call
            item = function_call(self._open, "in_progress", self.answer.calls[delta.call or 0]) | {"arguments": ""}
            yield self._event("response.output_item.added", output_index=len(self.output), item=item)
        if delta.arguments:
            yield self._event("response.function_call_arguments.delta", **self._place, delta=delta.arguments)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._open, "output_index": len(self.output)}

    def _close(self, status: str = "completed", signature: str | None = None) -> Iterator[Event]:
        """Events that complete the open item, if any. signature: of a thought, see `encrypted`."""
        if self._open is None:
            return
        if self._call == _THOUGHT:
            item = reasoning(self._open, status, self._text, self._thoughts.kind)
            item |= {} if signature is None else {"encrypted_content": signature}
            if self._text:
                yield self._of_thought(f"{self._thoughts.text}.done", text=self._text)
                done = reasoning_part(self._text, self._thoughts.kind)
                yield self._of_thought(f"{self._thoughts.part}.done", part=done)
            self._text = ""
        elif self._call is None:
            done = part(self._text, self._logprobs)
            item = message(self._open, status, [done])
            fields = {"content_index": 0, "text": self._text, "logprobs": self._logprobs}
            yield self._event("response.output_text.done", **self._place, **fields)
            yield self._event("response.content_part.done", **self._place, content_index=0, part=done)
            self._text, self._logprobs = "", []
        else:
            call = self.answer.calls[self._call]
            item = function_call(self._open, status, call)
            fields = {"name": call.name, "arguments": call.arguments}
            yield self._event("response.function_call_arguments.done", **self._place, **fields)
        yield self._event("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self._open = self._call = None

    def _event(self, kind: str, **members: Any) -> Event:  # noqa: ANN401  # JSON
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1, **members}

    def _whole(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        cut = {"reason": _CUT.get(self.answer.ended or "")} if status == "incomplete" else None
        warned = {"warnings": list(self.answer.warnings)} if self.answer.warnings else {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": cut,
            "model": self.model,
            "output": list(self.output),
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            **self.repeated,
            **warned,
            **(
                {}
                if self.prompt_ids is None
                else {"prompt_token_ids": self.prompt_ids, "token_ids": self.answer.token_ids}
            ),
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
