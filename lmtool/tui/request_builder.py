"""New requests made of a stream: a branch at one of its tokens, its text to be scored; and its own request."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError, UsageError
from lmtool.lmtp.codec import decode_request
from lmtool.lmtp.messages import Generate, Score
from lmtool.trace.content import JsonText
from lmtool.trace.events import Frame, Request
from lmtool.trace.stream_events import PROMPT_MEMBERS
from lmtool.tui.runs import visible
from lmtool.tui.sources.requests import TextToScore
from lmtool.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View
    from lmtool.types import Prompt

RULED_OUT = -100.0
"""Nats: a bias that no token is sampled with."""
FEWEST_TOKENS = 8
"""Tokens that a branch may have, however few its parent had left: there must be something to look at."""
TOP_LOGPROBS = 5
"""Alternatives a token that a branch has at least."""
LINE_FEED = visible("\n")
"""What stands for a line feed in an editable line, and means one where it is typed."""
_HTTP_PROMPTS = (*PROMPT_MEMBERS, "tools")


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
        return prompt_of(view, request_of(view, stream)) or ""  # nothing that could be a part of another prompt
    except LmtoolError:
        return None


# Branches.


def branch(view: View, row: int, instead: int) -> GenerateRequest:
    """Continue the stream's prompt, its tokens before `row`, and `instead`. Raises `UsageError`.

    The branch has its parent's parameters: what is left of `max_tokens` (at least `FEWEST_TOKENS`) and of
    `min_tokens`, and its seed, whose random numbers begin anew. What depends on the tokens before, which a request can
    give as prompt only, makes it an error: a constraint, processors, penalties on what was generated, a stop text that
    may have begun.
    """
    return _continued(view, row, (instead,))


def bias_out(view: View, row: int, token: int) -> GenerateRequest:
    """Continue from before `row` with this token ruled out; at a stream's first token any request can be.

    Otherwise as `branch`.
    """
    request = _continued(view, row, ())
    bias = {**request.sampling.logit_bias, token: RULED_OUT}
    return replace(request, sampling=replace(request.sampling, logit_bias=bias))


def _continued(view: View, row: int, more: tuple[int, ...]) -> GenerateRequest:
    stream, position = view.state.stream_of(row), view.position(row)
    message = request_of(view, stream)
    request = message.request
    if not isinstance(request, GenerateRequest):
        request = GenerateRequest(0, request.prompt, model=request.model)
    prompt = prompt_of(view, message)
    if not isinstance(prompt, tuple):
        raise UsageError(
            f"stream {stream.label} cannot be branched: its prompt was sent as text or messages",
            "prompts typed here are sent as ids",
        )
    prefix = (*ids_of(view, stream, position), *more)
    if reasons := [*(f"the field {name}" for name in message.ignored), *_stateful_parts(view, request, prefix)]:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: a branch would lose {' and '.join(reasons)}",
            *(["x on its first token loses nothing: no token stands before it"] if prefix else []),
        )
    if more and (ending := _ending(view, request.sampling, more[0])):
        raise UsageError(f"nothing comes after {view.measures.quote(more[0])}: {ending}")
    return replace(request, prompt=(*prompt, *prefix), sampling=_remaining(request.sampling, len(prefix)), text=False)


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
        "a stop text that may have begun": _may_have_begun(view, sampling.stop, prefix),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _may_have_begun(view: View, stops: tuple[str, ...], prefix: tuple[int, ...]) -> bool:
    """Whether these tokens end with a part of a stop text, or may do so."""
    if not stops:
        return False
    pieces = [view.state.texts.spelling(token) for token in prefix]
    if None in pieces:
        return True
    text = b"".join(piece for piece in pieces if piece is not None)
    encoded = [stop.encode() for stop in stops]
    return any(stop in text or any(text.endswith(stop[:i]) for i in range(1, len(stop))) for stop in encoded)


def _ending(view: View, sampling: SamplingParams, token: int) -> str:
    """Why a stream ends with this token; empty where it goes on."""
    if token in sampling.stop_token_ids:
        return "it is one of the request's stop_token_ids"
    return "it ends the text" if token in view.state.eos and not sampling.ignore_eos else ""


def _remaining(sampling: SamplingParams, used: int) -> SamplingParams:
    """The parameters for what comes after `used` tokens. A repetition penalty counts the prompt as well: it stays."""
    return replace(
        sampling,
        max_tokens=max(FEWEST_TOKENS, sampling.max_tokens - used),
        min_tokens=max(0, sampling.min_tokens - used),
        top_logprobs=max(TOP_LOGPROBS, sampling.top_logprobs),
    )


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
        head = common_length(own, line)
        tail = common_length(own[head:][::-1], line[head:][::-1])
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


def common_length(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """Elements that are equal from the first one on."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(ours), len(theirs)))
