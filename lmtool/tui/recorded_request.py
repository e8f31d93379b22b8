"""The request of a stream, read again as a whole: what its tokens follow, and what they were chosen by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError, UsageError
from lmtool.lmtp.codec import decode_request
from lmtool.lmtp.messages import Generate, Score
from lmtool.trace.events import Frame, Parsed, Request

if TYPE_CHECKING:
    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View
    from lmtool.types import Prompt

_HTTP_PROMPTS = ("prompt", "messages", "input", "instructions", "system", "tools")


def request_of(view: View, stream: Stream) -> Generate | Score:
    """The LMTP request of a stream. Raises `UsageError` where there is none, or it was redacted."""
    event = view.lines.whole(stream.frame)
    if isinstance(event, Frame) and event.direction == ">":
        try:
            message = decode_request(event.wire())
        except LmtoolError as error:
            raise UsageError(f"the request of stream {stream.label} cannot be sent again: {error.message}") from None
        if isinstance(message, Generate | Score):
            return message
    if stream.kind not in ("GEN", "SCORE"):
        raise UsageError(
            f"stream {stream.label} cannot be asked again: its tokens have no ids",
            "LMTP streams have them; HTTP ones do not",
        )
    raise UsageError(f"stream {stream.label} cannot be asked again: its request was not recorded")


def prompt_of(view: View, message: Generate | Score) -> Prompt:
    """What a stream's tokens follow: an empty prompt of GENERATE is the model's bos, as far as that was told."""
    prompt = message.request.prompt
    if prompt == () and isinstance(message, Generate) and view.state.bos is not None:
        return (view.state.bos,)
    return prompt


def ids_of(view: View, stream: Stream, count: int) -> tuple[int, ...]:
    """Ids of a stream's first tokens. Raises `UsageError` where one has none."""
    ids = tuple(view.state.tokens.ids[row] for row in stream.rows[:count])
    if any(token < 0 for token in ids):
        raise UsageError(f"stream {stream.label} cannot be asked again: some of its tokens have no ids")
    return ids


def context_of(view: View, stream: Stream) -> object:
    """What a stream's tokens follow, to be compared: ids, a text, messages, fields of an HTTP body; None: not known."""
    try:
        event = view.lines.whole(stream.frame)
        if isinstance(event, Request):
            body = event.body.value if isinstance(event.body, Parsed) else None
            return {name: body.get(name) for name in _HTTP_PROMPTS} if isinstance(body, dict) else None
        return prompt_of(view, request_of(view, stream)) or ""  # nothing that could be a part of another prompt
    except LmtoolError:
        return None
