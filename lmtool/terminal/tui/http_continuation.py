"""Continuations of HTTP answers: the text up to a token, with another there, and its ids where the answer has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.protocol.providers.answer_events import TextDelta, ToolCallDelta
from lmtool.protocol.providers.answer_reader import AnswerReader
from lmtool.protocol.providers.continuation import lost_parts, prompt_ids_in, stops_of
from lmtool.protocol.providers.json_values import list_of, object_of
from lmtool.terminal.tui.continuation import HttpContinuation
from lmtool.terminal.tui.request_builder import may_have_begun, spell, whole_text
from lmtool.trace.codec import reference
from lmtool.trace.events import JsonText, Piece, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View

KEPT_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
"""Headers of a request that say how it is to be read."""


def whole_answer(view: View, stream: Stream) -> HttpContinuation:
    """An answer up to the moment, as it is, to be scored. Raises `UsageError`."""
    count = stream.count(view.token_count)
    if not count:
        raise UsageError(f"stream {stream.label} has no token yet")
    row = stream.rows[count - 1]
    name = view.measures.name(row)
    return continue_answer(view, row, name, generates=False)


def continue_answer(
    view: View, row: int, instead: str | bytes | int, typed: str = "", *, generates: bool = True
) -> HttpContinuation:
    """Go on from before `row` with another token, or with a text that a person typed. Raises `UsageError`.

    generates: whether more tokens are to come, for which the parameters of the request count.
    """
    stream, position = view.state.stream_of(row), view.position(row)
    assert stream.api is not None
    request = _request_of(view, stream)
    body = request.body.value if isinstance(request.body, JsonText) else None
    if not isinstance(body, dict) or any(reference(one) or "$redacted" in object_of(one) for one in body.values()):
        raise UsageError(f"stream {stream.label} cannot be branched: its request was not recorded whole")
    body, choice = _of_choice(body, stream.choice)
    before = [view.state.tokens.ids[one] for one in stream.rows[:position]]
    pieces = [view.state.texts.spelling(one) for one in before]
    end = typed or instead
    text = whole_text([*pieces, spell(view, end)])
    if text is None:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: over HTTP an answer's beginning is sent as text, and "
            "these tokens end inside a character",
            "choose the token before or behind it",
        )
    reasons = (lost_parts(body) if generates else []) + _parts_beside_text(view, stream, row)
    if generates and may_have_begun(stops_of(body), [*pieces, spell(view, end)]):
        reasons.append("a stop text that may have begun")
    if reasons:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: a branch would lose {' and '.join(reasons)}",
            "streams of LMTP keep all of that: lmtool chat sends them",
        )
    named = not typed and not any(view.state.texts.is_piece(one) for one in before)
    known = tuple(piece for piece in (*pieces, spell(view, end)) if piece is not None)
    prompt_ids, ids = _ids_in(view, stream)
    return HttpContinuation(
        stream.label,
        stream.api,
        request.path,
        body,
        choice,
        position,
        text,
        tuple(piece for piece in known if piece) if named else None,
        ids[:position] if ids is not None and len(ids) >= position and named else None,
        prompt_ids,
        {name: value for name, value in request.headers.items() if name.lower() in KEPT_HEADERS},
    )


def _of_choice(body: Mapping[str, Any], choice: int) -> tuple[Mapping[str, Any], int]:
    """The request of one choice alone, where there are several prompts; which of this prompt's answers it is."""
    prompts, n = body.get("prompt"), body.get("n") or 1
    if not isinstance(prompts, list) or not prompts or type(prompts[0]) is int or type(n) is not int:
        return body, choice
    return {**body, "prompt": prompts[min(choice // n, len(prompts) - 1)]}, choice % n


def _request_of(view: View, stream: Stream) -> Request:
    try:
        event = view.lines.whole(stream.frame)
    except LmtoolError as error:
        raise UsageError(f"stream {stream.label} cannot be branched: {error.message}") from None
    if not isinstance(event, Request):
        raise UsageError(
            f"stream {stream.label} cannot be branched: the unified API's WebSocket has no way to go on with an answer",
            "ask over chat completions, or LMTP",
        )
    return event


def _pieces_of(view: View, stream: Stream, last: int) -> Iterator[Piece]:
    """The pieces of a stream's answer up to a frame."""
    log = view.state.frames
    for frame in range(stream.frame + 1, last + 1):
        if log.connections[frame] == stream.connection:
            event = view.lines.whole(frame)
            if isinstance(event, Piece):
                yield event
            elif isinstance(event, Request):
                return


def _parts_beside_text(view: View, stream: Stream, row: int) -> list[str]:
    """What an answer has before a token beside its text: a thought, calls."""
    found: dict[str, None] = {}
    reader: AnswerReader | None = None
    for piece in _pieces_of(view, stream, view.state.tokens.frames[row]):
        if reader is None:
            assert stream.api is not None
            reader = AnswerReader(stream.api, "events" if piece.kind == "sse" else stream.form)
        for event in reader.feed(piece.wire()):
            if isinstance(event, ToolCallDelta) and event.choice == stream.choice:
                found["its calls of tools"] = None
            elif isinstance(event, TextDelta) and event.choice == stream.choice and event.kind == "reasoning":
                found["its thought"] = None
    return list(found)


def _ids_in(view: View, stream: Stream) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Ids of prompt and answer, as far as the answer tells them (`return_token_ids`)."""
    prompt: tuple[int, ...] | None = None
    ids: list[int] = []
    told = False
    for piece in _pieces_of(view, stream, len(view.state.frames) - 1):
        value = object_of(piece.content.value if isinstance(piece.content, JsonText) else None)
        for part in (value, object_of(value.get("response")), object_of(value.get("message"))):
            prompt = prompt_ids_in(part) if prompt is None else prompt
        choices = [object_of(one) for one in list_of(value.get("choices"))]
        own = [one for one in choices if one.get("index", 0) == stream.choice]
        for part in (*own, value, object_of(value.get("response"))):
            if isinstance(new := part.get("token_ids"), list) and all(type(one) is int for one in new):
                told = True
                ids += new
    return prompt, tuple(ids) if told else None
