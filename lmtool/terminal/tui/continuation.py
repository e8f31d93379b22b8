"""Continuations: a stream up to one of its tokens, with another token there, and the request for the rest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import UsageError
from lmtool.core.types import BufferSlice, ChatPrompt, GenerateRequest, MixedPrompt, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.types import Prompt
    from lmtool.protocol.providers.answer_events import Api

FEWEST_TOKENS = 8
"""Tokens that a branch may have, however few its parent had left: there must be something to look at."""
AS_TEXT = "the server takes the beginning as text and cuts it into tokens itself: its numbers may be of other tokens"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a server can be asked for beside ids as prompt."""

    generated: bool = False
    """Ids that count as generated already (LMTP, GEN-17)."""
    mixed_prompt: bool = False
    """Texts among the ids of a prompt (TXT-1)."""
    encode: Callable[[str], Sequence[int]] | None = None
    """The ids of a text that follows another, by the model's tokenizer; None where it is not here."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A stream of LMTP up to one of its tokens, with another token, or a text, in the place of that."""

    label: str
    """Of the stream."""
    request: GenerateRequest
    """Its request; parameters count from the stream's beginning."""
    kept_ids: tuple[int, ...] = ()
    """Ids behind its prompt."""
    text: str = ""
    """What follows them, without ids."""
    kept_text: str | None = None
    """The kept ids as text; None where that is not known, or ends inside a character."""
    lost: tuple[str, ...] = ()
    """What depends on generated tokens, and would not know of those in a prompt: `its constraint`."""

    @property
    def beginning(self) -> bytes | None:
        """The bytes between the stream's prompt and the branch's own tokens; None where they are not known."""
        return None if self.kept_ids and self.kept_text is None else f"{self.kept_text or ''}{self.text}".encode()

    def request_for(self, server: Abilities) -> tuple[GenerateRequest, str]:
        """The request that continues exactly this, and a sentence on what is not certain, or empty.

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
                "goes on behind ids alone",
                "prompts typed here are sent as ids; lmtool serve goes on behind texts as well",
            )
        parts = prompt.parts if isinstance(prompt, MixedPrompt) else (prompt,)
        more: tuple[str | tuple[int, ...], ...] = (*([kept] if kept else []), *([text] if text else []))
        return self._behind(MixedPrompt((*parts, *more)), len(kept)), ""

    def _behind(self, prompt: Prompt, used: int) -> GenerateRequest:
        """A request for what comes after `used` tokens. A repetition penalty counts the prompt as well: it stays."""
        sampling = self.request.sampling
        most, least = max(FEWEST_TOKENS, sampling.max_tokens - used), max(0, sampling.min_tokens - used)
        return replace(self.request, prompt=prompt, sampling=replace(sampling, max_tokens=most, min_tokens=least))

    def _as_prefill(
        self, prompt: ChatPrompt, kept: tuple[int, ...], text: str, server: Abilities
    ) -> tuple[GenerateRequest, str]:
        """The beginning of the answer as a text, which must become the same tokens as far as that can be known."""
        if self.kept_ids and self.kept_text is None:
            raise UsageError(
                f"stream {self.label} cannot be branched here: the server takes the beginning of an answer as text, "
                "and these tokens end inside a character, or have no text that is known",
                "choose the token before or behind it",
            )
        begun = f"{prompt.prefill}{self.kept_text or ''}{self.text}"
        if server.encode is not None and tuple(server.encode(begun)) != (*server.encode(prompt.prefill), *kept):
            raise UsageError(
                f"stream {self.label} cannot be branched here: the server takes the beginning of an answer as text, "
                "and would cut this one into other tokens than those of the stream",
                "choose an earlier token, or a server that goes on behind ids, such as lmtool serve",
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
    """An HTTP answer up to one of its tokens, with another token, or a text, in the place of that."""

    label: str
    """Of the stream."""
    api: Api
    path: str
    body: Mapping[str, Any]
    """Of the request."""
    choice: int
    """Which of its answers."""
    used: int
    """Tokens, or pieces of text, before."""
    text: str
    """The beginning of the answer: its tokens before, and the new one."""
    pieces: tuple[bytes, ...] | None = None
    """The tokens of that text; None where they are not known, or a person typed its end."""
    ids: tuple[int, ...] | None = None
    """Ids of the tokens before, where the answer tells them."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids of the prompt, where the answer tells them."""
    headers: Mapping[str, str] = field(default_factory=dict)
