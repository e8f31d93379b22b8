"""Limits of prompts, checked before anything is tokenized or sent on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import ContextOverflowError, UnknownTokenError
from lmtool.core.types import ChatPrompt, MixedPrompt, ScoreRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lmtool.core.types import GenerateRequest, ModelInfo, Prompt

_NORMALISED = 4
"""Bytes of a text that its tokenizer may see as one: how much normalisation can shorten a character (U+1D400 to A)."""

_USUAL_BYTES = 4
"""Of a token of text, where the tokens of a model are not known."""


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The limits of one model's prompts. Every check raises `ContextOverflowError`."""

    model: str
    """Its name, for the sentence."""
    context_length: int
    """Most tokens of prompt and output together."""
    text_bytes: int | None = None
    """Most bytes of a text, in UTF-8, that can fit; None where the tokens are not known."""
    vocab_size: int | None = None
    """Ids are smaller; None where that is not known."""

    @staticmethod
    def of(info: ModelInfo) -> PromptLimits | None:
        """The limits of a model; None where its context is not known."""
        if info.context_length is None:
            return None
        return PromptLimits(info.model, info.context_length, vocab_size=info.vocab_size)

    def with_text_limit(self, longest_token_bytes: int) -> PromptLimits:
        """The same, with limits of texts. longest_token_bytes: bytes of the model's longest token.

        A tokenizer that drops text (blanks, unknown characters) could make fewer tokens of a longer text, which is
        refused all the same: it would be nothing but what is dropped.
        """
        return replace(self, text_bytes=self.context_length * longest_token_bytes * _NORMALISED)

    def check(self, request: GenerateRequest | ScoreRequest) -> None:
        """Check a request."""
        if not isinstance(request, ScoreRequest):
            self.check_prompt(request.prompt)
            self.check_generated(request)
            return
        if isinstance(request.scored, str):
            self.check_text(request.scored)
        if isinstance(request.prompt, tuple) and not isinstance(request.scored, str):
            self.check_scored(len(request.prompt), len(request.scored))
        else:
            self.check_prompt(request.prompt, room=0)

    def check_prompt(self, prompt: Prompt, *, room: int = 1) -> None:
        """Check a prompt of any form. room: tokens that must be left for the output."""
        if isinstance(prompt, str):
            self.check_text(prompt)
        elif isinstance(prompt, ChatPrompt):
            self.check_messages(prompt)
        elif isinstance(prompt, MixedPrompt):
            self.check_count(sum(len(part) for part in prompt.parts if isinstance(part, tuple)), room=room)
            self.check_text("".join(part for part in prompt.parts if isinstance(part, str)))
        else:
            self.check_count(len(prompt), room=room)

    def check_count(self, tokens: int, *, room: int = 1) -> None:
        """Check how many tokens a prompt has."""
        if tokens + room > self.context_length:
            raise ContextOverflowError.of(tokens, self.context_length - room, self._context)

    def check_beginning(self, tokens: int) -> None:
        """Check how many tokens the beginning of a text alone has: a few too many are worth being counted exactly."""
        if tokens > 2 * self.context_length:
            raise ContextOverflowError.of(f"at least {tokens}", self.context_length, self._context)

    def check_scored(self, prompt: int, scored: int) -> None:
        """Check how many tokens a prompt and what is scored after it have."""
        if prompt + scored > self.context_length:
            context = f"{self._context}, for {prompt} of prompt and {scored} that are scored"
            raise ContextOverflowError.of(prompt + scored, self.context_length, context)

    def check_ids(self, ids: Iterable[int], field: str) -> None:
        """Check that ids are in the vocabulary, where that is known. Raises `UnknownTokenError`."""
        size = self.vocab_size
        unknown = None if size is None else next((token for token in ids if not 0 <= token < size), None)
        if size is not None and unknown is not None:
            raise UnknownTokenError(
                f"token id {unknown} in {field} is not in the vocabulary of {self.model} (0 to {size - 1})",
                "check that the client uses this model's tokenizer: lmtool info",
            )

    def check_generated(self, request: GenerateRequest) -> None:
        """Check how many tokens count as generated, and with a prompt of ids how many both have together."""
        count = len(request.generated)
        room = self.context_length - (len(request.prompt) if isinstance(request.prompt, tuple) else 0)
        if count > room:
            raise ContextOverflowError(
                f"generated has {count} ids, which do not fit behind the prompt: the context of {self.model} is "
                f"{self.context_length} tokens",
                "send the ids of one stream, as they came",
            )

    def check_text(self, text: str) -> None:
        """Check how long a text is."""
        if self.text_bytes is None or len(text) <= self.text_bytes // 4:  # no character has more than four bytes
            return
        self._check_bytes(_bytes(text))

    def check_messages(self, chat: ChatPrompt) -> None:
        """Check how many messages there are, each being a token at least, and how long they are together."""
        if (count := len(chat.messages)) > self.context_length:
            hint = f"leave out the oldest of {count} messages"
            raise ContextOverflowError.of(f"at least {count}", self.context_length, self._context, hint)
        if self.text_bytes is not None:
            self._check_bytes(sum(map(_bytes, _texts(chat))))
        self.check_count(sum(len(message.tokens or ()) for message in chat.messages), room=0)

    def _check_bytes(self, size: int) -> None:
        if self.text_bytes is not None and size > self.text_bytes:
            least = -(-size * self.context_length // self.text_bytes)
            raise ContextOverflowError.of(f"at least {least}", self.context_length, self._context)

    @property
    def _context(self) -> str:
        """The context length, for sentences."""
        return f"{self.context_length} tokens ({self.model})"


def check_allowed_length(request: GenerateRequest | ScoreRequest) -> None:
    """Raise `ContextOverflowError` for more ids than the request's own `max_prompt_tokens`; texts are not counted."""
    if request.max_prompt_tokens is None or not isinstance(request.prompt, tuple):
        return
    scored = request.scored if isinstance(request, ScoreRequest) else ()
    count = len(request.prompt) + (0 if isinstance(scored, str) else len(scored))
    if count > request.max_prompt_tokens:
        raise _longer_than_allowed(count, request.max_prompt_tokens)


def check_allowed_text(request: GenerateRequest | ScoreRequest, limits: PromptLimits | None) -> None:
    """Raise `ContextOverflowError` for texts that have more than `max_prompt_tokens` however they are tokenized.

    limits: of the model, by which the most bytes of a token are known; otherwise a token counts as four bytes.
    """
    most = request.max_prompt_tokens
    if most is None:
        return
    scored = request.scored if isinstance(request, ScoreRequest) and isinstance(request.scored, str) else ""
    size, allowed = sum(map(_bytes, _texts(request.prompt))) + _bytes(scored), most * _USUAL_BYTES
    if limits is not None and limits.text_bytes is not None:
        allowed = most * limits.text_bytes // limits.context_length
    if size > allowed:
        raise _longer_than_allowed(f"at least {-(-size * most // max(1, allowed))}", most)


def _texts(prompt: Prompt) -> Iterator[str]:
    """All texts that become part of a prompt."""
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, MixedPrompt):
        yield from (part for part in prompt.parts if isinstance(part, str))
    elif isinstance(prompt, ChatPrompt):
        yield prompt.prefill
        for message in prompt.messages:
            yield message.content
            yield from (text for call in message.tool_calls for text in (call.name, call.arguments))


def _longer_than_allowed(tokens: int | str, most: int) -> ContextOverflowError:
    return ContextOverflowError.of(tokens, most, f"{most} tokens for this key")


LimitsByModel: TypeAlias = Mapping[str | None, PromptLimits]
"""The limits of served models by their names; None: of every other name. What is not found has no limits."""


def limits_of(name: str | None, limits: LimitsByModel) -> PromptLimits | None:
    """The limits of the model of a name."""
    return limits.get(name) or limits.get(None)


def widest(limits: Iterable[PromptLimits]) -> PromptLimits:
    """What is refused by it is refused by all of these, of which there is one at least."""
    known = sorted(limits, key=lambda one: one.context_length)
    return replace(
        known[-1],
        text_bytes=_most([one.text_bytes for one in known]),
        vocab_size=_most([one.vocab_size for one in known]),
    )


def _most(values: Sequence[int | None]) -> int | None:
    """The largest of these; None where one is not known."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
