"""New LMTP requests built from a stream: a branch at one of its tokens, or its text to score."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.core.types import BufferSlice, ChatPrompt, GenerateRequest, MixedPrompt, SamplingParams
from lmtool.protocol.lmtp.codec import decode_request
from lmtool.protocol.lmtp.messages import Generate, Score
from lmtool.terminal.tui.runs import visible
from lmtool.trace.events import Frame, JsonText, Request
from lmtool.trace.matching import first_difference
from lmtool.trace.stream_events import PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lmtool.core.types import Prompt
    from lmtool.protocol.providers.answer_events import Api
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View

FEWEST_TOKENS = 8
"""Least `max_tokens` of a branch, however few tokens its parent had left."""
AS_TEXT = "the server takes the beginning as text and cuts it into tokens itself: its numbers may be of other tokens"


@dataclass(frozen=True, slots=True)
class Abilities:
    """Kinds of prompts that a server takes in addition to ids."""

    generated: bool = False
    """Ids that count as generated already (LMTP, GEN-17)."""
    mixed_prompt: bool = False
    """Texts among the ids of a prompt (TXT-1)."""
    encode: Callable[[str], Sequence[int]] | None = None
    """Encodes a text that follows another one with the model's tokenizer; None if that is not available here."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """An LMTP stream up to one of its tokens, which is replaced by another token or a text."""

    label: str
    """Label of the stream."""
    request: GenerateRequest
    """Its request, with the parameters of the whole stream."""
    kept_ids: tuple[int, ...] = ()
    """Ids to keep after its prompt."""
    text: str = ""
    """Text without ids that follows the kept ids."""
    kept_text: str | None = None
    """Text of the kept ids; None if unknown, or if it ends inside a character."""
    lost: tuple[str, ...] = ()
    """Parts of the request that need generated tokens, and would lose them in a prompt: `its constraint`."""

    @property
    def beginning(self) -> bytes | None:
        """Bytes between the stream's prompt and the branch's own tokens; None if unknown."""
        return None if self.kept_ids and self.kept_text is None else f"{self.kept_text or ''}{self.text}".encode()

    def request_for(self, server: Abilities) -> tuple[GenerateRequest, str]:
        """The request that continues exactly this, and a note on what is uncertain, or an empty text.

        As prompt where that loses nothing, else behind the prompt as generated ids. Raises `UsageError` where the
        server can be asked for neither.
        """
        kept, text = self.kept_ids, self.text
        if text and server.encode is not None:
            kept, text = (*kept, *server.encode(text)), ""
        prompt = self.request.prompt
        self._check_buffers(prompt)
        if not kept and not text:
            return replace(self.request, sampling=_room(self.request.sampling, 0)), ""
        if isinstance(prompt, tuple) and not self.lost and (not text or server.mixed_prompt):
            ids = (*prompt, *kept)
            return self._behind(MixedPrompt((ids, text)) if text else ids, len(kept)), ""
        if server.generated and not text:
            return replace(self.request, generated=kept, sampling=_room(self.request.sampling, len(kept))), ""
        if self.lost:
            raise UsageError(
                f"stream {self.label} cannot be branched here: a branch would lose {' and '.join(self.lost)}",
                "x on its first token loses nothing: no token stands before it",
            )
        if isinstance(prompt, ChatPrompt):
            return self._as_prefill(prompt, kept, text, server)
        if not server.mixed_prompt or isinstance(prompt, tuple):
            raise UsageError(
                f"stream {self.label} cannot be branched: its prompt was sent as text or messages, and this server "
                "continues ids alone",
                "prompts typed here are sent as ids; lmtool serve continues texts as well",
            )
        parts = prompt.parts if isinstance(prompt, MixedPrompt) else (prompt,)
        more: tuple[str | tuple[int, ...], ...] = (*([kept] if kept else []), *([text] if text else []))
        return self._behind(MixedPrompt((*parts, *more)), len(kept)), ""

    def _behind(self, prompt: Prompt, used: int) -> GenerateRequest:
        """A request for the tokens after `used` tokens. The repetition penalty stays, as it counts the prompt."""
        sampling = self.request.sampling
        most, least = max(FEWEST_TOKENS, sampling.max_tokens - used), max(0, sampling.min_tokens - used)
        return replace(self.request, prompt=prompt, sampling=replace(sampling, max_tokens=most, min_tokens=least))

    def _as_prefill(
        self, prompt: ChatPrompt, kept: tuple[int, ...], text: str, server: Abilities
    ) -> tuple[GenerateRequest, str]:
        """Request with the beginning of the answer as prefill. Raises `UsageError` if that changes the tokens."""
        if self.kept_ids and self.kept_text is None:
            raise UsageError(
                f"stream {self.label} cannot be branched here: the server takes the beginning of an answer as text, "
                "and these tokens end inside a character, or have no text that is known",
                "choose the token before or after it",
            )
        begun = f"{prompt.prefill}{self.kept_text or ''}{self.text}"
        if server.encode is not None and tuple(server.encode(begun)) != (*server.encode(prompt.prefill), *kept):
            raise UsageError(
                f"stream {self.label} cannot be branched here: the server takes the beginning of an answer as text, "
                "and would cut this one into other tokens than those of the stream",
                "choose an earlier token, or a server that continues ids, such as lmtool serve",
            )
        known = server.encode is not None and not text
        return self._behind(replace(prompt, prefill=begun), len(kept)), "" if known else AS_TEXT

    def _check_buffers(self, prompt: Prompt) -> None:
        if isinstance(prompt, MixedPrompt) and any(isinstance(part, BufferSlice) for part in prompt.parts):
            raise UsageError(
                f"stream {self.label} cannot be branched: its prompt names a buffer of another connection",
                "send the prompt's ids in place of the buffer",
            )


def _room(sampling: SamplingParams, used: int) -> SamplingParams:
    """The parameters of a stream that has `used` tokens already, so that it may have some more."""
    return replace(sampling, max_tokens=max(sampling.max_tokens, used + FEWEST_TOKENS))


@dataclass(frozen=True, slots=True)
class HttpContinuation:
    """An HTTP answer up to one of its tokens, which is replaced by another token or a text."""

    label: str
    """Label of the stream."""
    api: Api
    path: str
    body: Mapping[str, Any]
    """Body of the request."""
    choice: int
    """Index of the answer."""
    used: int
    """Number of kept tokens, or pieces of text."""
    text: str
    """Beginning of the answer: the kept tokens and the new one."""
    pieces: tuple[bytes, ...] | None = None
    """Tokens of that text; None if unknown, or if its end was typed."""
    ids: tuple[int, ...] | None = None
    """Ids of the kept tokens, if the answer has them."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids of the prompt, if the answer has them."""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_score: bool = False
    """True if the text is to be scored instead of continued."""

    @property
    def beginning(self) -> bytes:
        """The bytes between the prompt and the branch's own tokens."""
        return self.text.encode()


RULED_OUT = -100.0
"""Nats: a bias that no token is sampled with."""
TOP_LOGPROBS = 5
"""Alternatives a token that a branch has at least."""
LINE_FEED = visible("\n")
"""Sign of a line feed in an editable line, also when typed."""
_HTTP_PROMPTS = (*PROMPT_MEMBERS, "prompt_token_ids", "tools")


# The request of a stream.


def request_of(view: View, stream: Stream) -> Generate | Score:
    """The LMTP request of a stream. Raises `UsageError` if there is none, or if it was redacted."""
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
    """Prompt of a request; an empty prompt of GENERATE is the model's bos, if known."""
    prompt = message.request.prompt
    if prompt == () and isinstance(message, Generate) and view.state.bos is not None:
        return (view.state.bos,)
    return prompt


def ids_of(view: View, stream: Stream, count: int) -> tuple[int, ...]:
    """Ids of a stream's first tokens. Raises `UsageError` if one has none."""
    ids = tuple(view.state.tokens.ids[row] for row in stream.rows[:count])
    if any(token < 0 for token in ids):
        raise UsageError(f"stream {stream.label} cannot be sent again: some of its tokens have no ids")
    return ids


def context_of(view: View, stream: Stream) -> object:
    """Context of a stream's tokens for comparisons: ids, text, messages, or fields of an HTTP body; None if unknown."""
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
    """Ids that count as generated after a text or messages; after ids they are part of the context."""
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
            "choose the token before or after it",
        )
    return Continuation(stream.label, request, (), begun + typed, None, tuple(_stateful_parts(view, request, before)))


def spell(view: View, name: int | str | bytes) -> bytes | None:
    """Bytes of a token by its id, text or bytes; None if unknown."""
    if isinstance(name, int):
        return view.state.texts.spelling(name)
    return name.encode() if isinstance(name, str) else name


def _spellings(view: View, tokens: Iterable[int]) -> list[bytes | None]:
    return [view.state.texts.spelling(token) for token in tokens]


def whole_text(pieces: Sequence[bytes | None]) -> str | None:
    """Text of these pieces; None if it ends inside a character, or if a piece is unknown."""
    if any(piece is None for piece in pieces):
        return None
    try:
        return b"".join(piece for piece in pieces if piece is not None).decode()
    except UnicodeDecodeError:
        return None


def _stateful_parts(view: View, request: GenerateRequest, prefix: tuple[int, ...]) -> list[str]:
    """Parts of a request that depend on generated tokens, and would lose them in the new prompt."""
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
    """True if these tokens end with a part of a stop text, or may do so."""
    encoded = [stop.encode() for stop in stops]
    if not encoded or None in pieces:
        return bool(encoded)
    text = b"".join(piece for piece in pieces if piece is not None)
    return any(stop in text or any(text.endswith(stop[:i]) for i in range(1, len(stop))) for stop in encoded)


def _ending(view: View, sampling: SamplingParams, token: int) -> str:
    """Reason that a stream ends with this token; empty if it continues."""
    if token in sampling.stop_token_ids:
        return "it is one of the request's stop_token_ids"
    return "it ends the text" if token in view.state.eos and not sampling.ignore_eos else ""


# Scores.


@dataclass(frozen=True, slots=True)
class TextToScore:
    """A text: known ids, and text between them that is still to be tokenized."""

    prompt: Prompt
    before: tuple[int, ...]
    text: str
    """Text after `before`; empty if all ids are known."""
    after: tuple[int, ...] = ()
    whole: str = ""
    """The whole text, sent instead of ids if the tokenizer is not available here."""
    model: str | None = None


@dataclass(frozen=True, slots=True)
class EditableText:
    """The tokens of a stream as a line that a person may edit before it is scored."""

    prompt: Prompt
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """Text that each token completes: a character belongs to its last token."""
    whole: tuple[bool, ...]
    """For each token, True if a character ends with it, so that a text can be cut there."""
    model: str | None

    @property
    def line(self) -> str:
        """The whole text in one line, without control characters."""
        return "".join(map(visible, "".join(self.texts)))

    def after_edit(self, line: str) -> TextToScore:
        """The known ids around the edit, and the edited text in between."""
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
        """Original characters between two offsets of the line."""
        origins = [part for c in "".join(self.texts) for part in (c, *[""] * (len(visible(c)) - 1))]
        return "".join(origins[begin:end])


def editable_text(view: View, stream: Stream) -> EditableText:
    """A stream's prompt and tokens up to the moment. Raises `UsageError` if they cannot be sent again."""
    message, count = request_of(view, stream), stream.count(view.token_count)
    ids, decoder, whole = ids_of(view, stream, count), codecs.getincrementaldecoder("utf-8")("replace"), []
    for token in ids:
        decoder.decode(view.state.texts.spelling(token) or b"")
        whole.append(not decoder.getstate()[0])
    texts = tuple(view.state.texts.text_at(stream, i) for i in range(count))
    return EditableText(prompt_of(view, message), ids, texts, tuple(whole), message.request.model)
