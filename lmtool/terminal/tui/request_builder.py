"""New requests made of a stream: a branch at one of its tokens, its text to be scored; and its own request."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.codec import decode_request
from lmtool.protocol.lmtp.messages import Generate, Score
from lmtool.terminal.tui.continuation import Continuation
from lmtool.terminal.tui.runs import visible
from lmtool.terminal.tui.sources.requests import TextToScore
from lmtool.trace.events import Frame, JsonText, Request
from lmtool.trace.matching import first_difference
from lmtool.trace.stream_events import PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmtool.core.types import Prompt
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View

RULED_OUT = -100.0
"""Nats: a bias that no token is sampled with."""
TOP_LOGPROBS = 5
"""Alternatives a token that a branch has at least."""
LINE_FEED = visible("\n")
"""What stands for a line feed in an editable line, and means one where it is typed."""
_HTTP_PROMPTS = (*PROMPT_MEMBERS, "prompt_token_ids", "tools")


# The request of a stream.


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
    if stream.nodes is not None:
        raise UsageError(
            f"the action {stream.label} cannot be sent again alone: its nodes belong to their session",
            "send the recorded session:  lmtool trace drive FILE --to URL",
        )
    if stream.kind not in ("GEN", "SCORE"):
        raise UsageError(
            f"stream {stream.label} cannot be sent again: its tokens have no ids",
            "LMTP streams have them; HTTP ones do not",
        )
    raise UsageError(f"stream {stream.label} cannot be sent again: its request was not recorded")


def prompt_of(view: View, message: Generate | Score) -> Prompt:
    """What a stream's tokens follow: an empty prompt of GENERATE is the model's bos, as far as that is known."""
    prompt = message.request.prompt
    if prompt == () and isinstance(message, Generate) and view.state.bos is not None:
        return (view.state.bos,)
    return prompt


def ids_of(view: View, stream: Stream, count: int) -> tuple[int, ...]:
    """Ids of a stream's first tokens. Raises `UsageError` where one has none."""
    ids = tuple(view.state.tokens.ids[row] for row in stream.rows[:count])
    if any(token < 0 for token in ids):
        raise UsageError(f"stream {stream.label} cannot be sent again: some of its tokens have no ids")
    return ids


def context_of(view: View, stream: Stream) -> object:
    """What a stream's tokens follow, to be compared: ids, a text, messages, fields of an HTTP body; None: not known."""
    try:
        event = view.lines.whole(stream.frame)
        if isinstance(event, Request):
            body = event.body.value if isinstance(event.body, JsonText) else None
            return {name: body.get(name) for name in _HTTP_PROMPTS} if isinstance(body, dict) else None
        message = request_of(view, stream)
        prompt = prompt_of(view, message)
    except LmtoolError:
        return None
    ids = (*prompt, *_generated(message)) if isinstance(prompt, tuple) else prompt
    return ids or ""  # nothing that could be a part of another prompt


def begun_of(view: View, stream: Stream) -> tuple[int, ...]:
    """Ids that count as generated already behind a stream's text or messages; those of ids belong to its context."""
    try:
        message = request_of(view, stream)
    except LmtoolError:
        return ()
    return () if isinstance(message.request.prompt, tuple) else _generated(message)


def _generated(message: Generate | Score) -> tuple[int, ...]:
    return message.request.generated if isinstance(message.request, GenerateRequest) else ()


# Branches.


def branch(view: View, row: int, instead: int | str | bytes, typed: str = "") -> Continuation:
    """Continue the stream's prompt, its tokens before `row`, and `instead`. Raises `UsageError`.

    The branch has its parent's parameters and its seed, whose random numbers are the ones of these positions.

    instead: an id, or the text or bytes of a token without one; with `typed` the text that a person gives stands in
    its place.
    """
    continued = _continued(view, row, () if typed else (instead,), typed)
    sampling = continued.request.sampling
    if isinstance(instead, int) and not typed and (ending := _ending(view, sampling, instead)):
        raise UsageError(f"nothing comes after {view.measures.quote(instead)}: {ending}")
    return continued


def bias_out(view: View, row: int, token: int | str | bytes) -> Continuation:
    """Continue from before `row` with this token ruled out; at a stream's first token any request can be.

    Otherwise as `branch`.
    """
    if not isinstance(token, int):
        raise UsageError("the tokens of this stream have no ids, so that none of them can be ruled out")
    continued = _continued(view, row, (), "")
    sampling = continued.request.sampling
    biased = replace(sampling, logit_bias={**sampling.logit_bias, token: RULED_OUT})
    return replace(continued, request=replace(continued.request, sampling=biased))


def _continued(view: View, row: int, more: tuple[int | str | bytes, ...], typed: str) -> Continuation:
    stream, position = view.state.stream_of(row), view.position(row)
    message = request_of(view, stream)
    request = message.request
    if not isinstance(request, GenerateRequest):
        request = GenerateRequest(0, request.prompt or (), model=request.model)
    if reasons := [f"the field {name}" for name in message.ignored]:
        raise UsageError(f"stream {stream.label} cannot be branched here: a branch would lose {' and '.join(reasons)}")
    sampling = replace(request.sampling, top_logprobs=max(TOP_LOGPROBS, request.sampling.top_logprobs))
    prompt = prompt_of(view, message) if isinstance(message, Generate) else request.prompt
    request = replace(request, prompt=prompt, sampling=sampling, text=False, generated=(), into=None)
    kept = _generated(message)
    before = tuple(view.state.tokens.ids[one] for one in stream.rows[:position])
    if all(isinstance(one, int) for one in more) and all(token >= 0 for token in before):
        kept = (*kept, *before, *(one for one in more if isinstance(one, int)))
        text = None if None in (pieces := _spellings(view, kept)) else whole_text(pieces)
        lost = _stateful_parts(view, request, kept)
        if prompt == () and isinstance(message, Generate) and kept:
            lost.append("what the server puts in the place of an empty prompt")
        return Continuation(stream.label, request, kept, typed, text, tuple(lost))
    begun = whole_text([*_spellings(view, before), *(spell(view, one) for one in more)])
    if begun is None or kept:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: these tokens have no ids, and their text ends inside a "
            "character",
            "choose the token before or behind it",
        )
    return Continuation(stream.label, request, (), begun + typed, None, tuple(_stateful_parts(view, request, before)))


def spell(view: View, name: int | str | bytes) -> bytes | None:
    """The bytes that a token adds, by its id, text or bytes; None where they are not known."""
    if isinstance(name, int):
        return view.state.texts.spelling(name)
    return name.encode() if isinstance(name, str) else name


def _spellings(view: View, tokens: Iterable[int]) -> list[bytes | None]:
    return [view.state.texts.spelling(token) for token in tokens]


def whole_text(pieces: Sequence[bytes | None]) -> str | None:
    """The text that these pieces make; None where it ends inside a character, or a piece is not known."""
    if any(piece is None for piece in pieces):
        return None
    try:
        return b"".join(piece for piece in pieces if piece is not None).decode()
    except UnicodeDecodeError:
        return None


def _stateful_parts(view: View, request: GenerateRequest, prefix: tuple[int, ...]) -> list[str]:
    """Parts of a request that depend on generated tokens, and would not know of those in the new prompt."""
    if not prefix:
        return []
    sampling = request.sampling
    reasons = {
        "its constraint": request.constraint is not None,
        "its logits_processors": bool(request.logits_processors),
        "its presence_penalty": sampling.presence_penalty != 0,
        "its frequency_penalty": sampling.frequency_penalty != 0,
        "its thought, apart from the answer": request.reasoning is not None,
        "a stop text that may have begun": may_have_begun(sampling.stop, _spellings(view, prefix)),
    }
    return [reason for reason, holds in reasons.items() if holds]


def may_have_begun(stops: Iterable[str], pieces: Sequence[bytes | None]) -> bool:
    """Whether these tokens end with a part of a stop text, or may do so."""
    encoded = [stop.encode() for stop in stops]
    if not encoded or None in pieces:
        return bool(encoded)
    text = b"".join(piece for piece in pieces if piece is not None)
    return any(stop in text or any(text.endswith(stop[:i]) for i in range(1, len(stop))) for stop in encoded)


def _ending(view: View, sampling: SamplingParams, token: int) -> str:
    """Why a stream ends with this token; empty where it goes on."""
    if token in sampling.stop_token_ids:
        return "it is one of the request's stop_token_ids"
    return "it ends the text" if token in view.state.eos and not sampling.ignore_eos else ""


# Scores.


@dataclass(frozen=True, slots=True)
class EditableText:
    """The tokens of a stream as a line that a person may edit before it is scored."""

    prompt: Prompt
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """What each token completes: a character belongs to its last token."""
    whole: tuple[bool, ...]
    """For each token whether a character ends with it, so that a text can be cut there."""
    model: str | None

    @property
    def line(self) -> str:
        """All of it in one line, harmless."""
        return "".join(map(visible, "".join(self.texts)))

    def after_edit(self, line: str) -> TextToScore:
        """The tokens as they are where the line is; only what differs is left to be tokenized."""
        own = self.line
        if line == own:
            return TextToScore(self.prompt, self.ids, "", (), line, self.model)
        head = first_difference(own, line)
        tail = first_difference(own[head:][::-1], line[head:][::-1])
        ends = list(accumulate((len("".join(map(visible, text))) for text in self.texts), initial=0))
        cuts = [i for i in range(len(ends)) if i == 0 or (self.whole[i - 1] and self.texts[i - 1])]
        first = max(i for i in cuts if ends[i] <= head)
        last = min((i for i in cuts if i >= first and ends[i] >= len(own) - tail), default=len(self.ids))
        if not "".join(self.texts[last:]):
            last = len(self.ids)  # an ending belongs to the text before it
        typed = line[head : len(line) - tail].replace(LINE_FEED, "\n")
        text = f"{self._between(ends[first], head)}{typed}{self._between(len(own) - tail, ends[last])}"
        whole = f"{''.join(self.texts[:first])}{text}{''.join(self.texts[last:])}"
        return TextToScore(self.prompt, self.ids[:first], text, self.ids[last:], whole, self.model)

    def _between(self, begin: int, end: int) -> str:
        """The characters that stand between two places of the line."""
        origins = [part for c in "".join(self.texts) for part in (c, *[""] * (len(visible(c)) - 1))]
        return "".join(origins[begin:end])


def editable_text(view: View, stream: Stream) -> EditableText:
    """A stream's tokens up to the moment, after its own prompt. Raises `UsageError` where they cannot be sent again."""
    message, count = request_of(view, stream), stream.count(view.token_count)
    ids, decoder, whole = ids_of(view, stream, count), codecs.getincrementaldecoder("utf-8")("replace"), []
    for token in ids:
        decoder.decode(view.state.texts.spelling(token) or b"")
        whole.append(not decoder.getstate()[0])
    texts = tuple(view.state.texts.text_at(stream, i) for i in range(count))
    return EditableText(prompt_of(view, message), ids, texts, tuple(whole), message.request.model)
