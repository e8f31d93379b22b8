"""The prompt from the command line and stdin, and the requests made from prompts."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO

from lmtool.core.errors import UsageError
from lmtool.core.reasoning import Reasoning
from lmtool.core.sampling_parameters import PROMPT_MAX_TOKENS
from lmtool.core.types import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    GenerateRequest,
    ModelInfo,
    NamedProcessor,
    Prompt,
    SamplingParams,
)
from lmtool.settings.prompt_parameters import TypedPrompt, apart, split_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STDIN_LIMIT = 4 << 20
"""Most bytes read from stdin: LMTP's limit on a frame."""


@dataclass(frozen=True, slots=True)
class PromptParsing:
    """How a typed prompt is parsed."""

    literal: bool = False
    """True if `name=value` words are text."""
    compat_space: bool = False
    """True if the prompt ends in one space, as LMQL's own client sends it."""

    def parse(self, text: str) -> TypedPrompt:
        """Split a prompt from the parameters behind it. Raises `UsageError` for a parameter's value."""
        if self.literal:
            return TypedPrompt(text)
        try:
            return split_prompt(text, compat_space=self.compat_space)
        except UsageError as error:
            raise UsageError(error.message, "to send it as text:  --literal") from None


def read_prompt(words: Sequence[str], parsing: PromptParsing, stdin: TextIO | None) -> TypedPrompt | None:
    """The prompt: the words, stdin, or both with a blank line between; `-` among the words stands for stdin.

    Only words can be parameters. None without words where stdin is a terminal.
    Raises `UsageError` for a parameter's value, an empty prompt, or text that is not UTF-8.
    """
    if "-" in words:
        return _prompt_around_stdin(list(words), parsing, stdin)
    typed = parsing.parse(" ".join(words))
    check_encoding(typed.text)
    piped = read_stdin(stdin)
    if piped is None and not typed.text.strip(" "):
        if words:
            raise UsageError("the prompt is empty", 'say something:  lmtool chat "Hello there"')
        return None
    if piped and typed.text.strip(" "):
        return replace(typed, text=f"{typed.text}\n\n{piped}")
    text = piped or typed.text
    if not text.strip(" "):
        raise UsageError(
            "the prompt is empty: no words, and nothing on stdin", 'say something:  lmtool chat "Hello there"'
        )
    return replace(typed, text=text)


def _prompt_around_stdin(words: list[str], parsing: PromptParsing, stdin: TextIO | None) -> TypedPrompt:
    """The words with stdin in the place of `-`; only words behind it can be parameters."""
    place = words.index("-")
    typed = parsing.parse(" ".join(words[place + 1 :]))
    before = " ".join(words[:place])
    piped = read_stdin(stdin, wait=True)
    if piped is None:
        raise UsageError("'-' stands for stdin, which is closed", "pipe something in, or leave '-' out")
    text = " ".join(part for part in (before, piped, typed.text) if part)
    check_encoding(text)
    if not text:
        raise UsageError("the prompt is empty: nothing came from stdin", 'say something:  lmtool chat "Hello there"')
    return replace(typed, text=text)


def read_stdin(stdin: TextIO | None, *, wait: bool = False) -> str | None:
    """Piped text without its last line feed; None where stdin is a terminal, closed, or a device such as /dev/null.

    wait: read from a terminal too, up to Ctrl-D. Raises `UsageError` for more than 4 MiB or text that is not UTF-8.
    """
    if stdin is None or stdin.closed:
        return None
    if not wait and not _is_piped(stdin):
        return None
    data = stdin.buffer.read(STDIN_LIMIT + 1)
    if len(data) > STDIN_LIMIT:
        raise UsageError(f"stdin has more than {STDIN_LIMIT >> 20} MiB, the most a prompt can have", "send less of it")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"stdin is not UTF-8: byte {error.start} is {data[error.start]:#04x}", "convert it first"
        ) from None


def _is_piped(stdin: TextIO) -> bool:
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (OSError, ValueError):
        return True  # an object that a test or an embedding program put there
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def check_encoding(text: str) -> None:
    """Raise `UsageError` for words of a command line that were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the prompt is not valid UTF-8", "check the terminal's encoding, or pipe the text in"
        ) from None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What every request of a session has in common."""

    model: str | None = None
    system: str | None = None
    template: bool | None = None
    """True to send messages, for the chat template; None: where the model has one."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters set by options: fields of `SamplingParams`, and `deadline`."""
    constraint: Constraint | None = None
    logits_processors: tuple[NamedProcessor, ...] = ()
    constraint_origin: str = ""
    """Where the constraint was given: its option, and its file where it has one."""

    def sampling(self, info: ModelInfo, typed: Mapping[str, Any]) -> SamplingParams:
        """The parameters of one request: those typed with its prompt win over options, these over the defaults."""
        return replace(SamplingParams(max_tokens=default_max_tokens(info)), **apart({**self.parameters, **typed})[0])

    def deadline(self, typed: Mapping[str, Any]) -> float | None:
        """The deadline of one request in seconds, None without one: as typed with its prompt, or as set by options."""
        return apart({**self.parameters, **typed})[1]

    def request(
        self,
        stream_id: int,
        text: str,
        info: ModelInfo,
        sampling: SamplingParams,
        history: Sequence[ChatMessage] = (),
        *,
        deadline: float | None = None,
        prefill: str = "",
    ) -> GenerateRequest:
        """The request for one prompt. prefill: the beginning of the answer, which is gone on with.

        Raises `UsageError` for a system text where there is no template.
        """
        prompt = self._prompt(text, info, history, prefill)
        return GenerateRequest(
            stream_id,
            prompt,
            sampling,
            model=self.model,
            text=True,
            constraint=self.constraint,
            logits_processors=self.logits_processors,
            deadline=deadline,
            reasoning=Reasoning() if info.reasoning is not None or info.text_only else None,
        )

    def _prompt(self, text: str, info: ModelInfo, history: Sequence[ChatMessage], prefill: str) -> Prompt:
        if self.templated(info):
            system = (ChatMessage("system", self.system),) if self.system else ()
            return ChatPrompt((*system, *history, ChatMessage("user", text)), prefill=prefill)
        if self.system and self.template is False:
            raise UsageError("a system text needs the chat template", "leave out --no-template, or --system")
        if self.system:
            raise UsageError(
                f"{info.model} has no chat template, so there is no place for a system text", "put it into the prompt"
            )
        return text + prefill

    def templated(self, info: ModelInfo) -> bool:
        """True if prompts are sent as messages."""
        return info.chat_template if self.template is None else self.template


def default_max_tokens(info: ModelInfo) -> int:
    """Default `max_tokens`: 256, but at most half of the model's context."""
    if info.context_length is None:
        return PROMPT_MAX_TOKENS
    return max(1, min(PROMPT_MAX_TOKENS, info.context_length // 2))


def variants(sampling: SamplingParams, count: int) -> list[SamplingParams]:
    """The parameters of `count` streams of one prompt: a seed counts up, so that they differ and are repeatable."""
    if sampling.seed is None:
        return [sampling] * count
    return [replace(sampling, seed=sampling.seed + i) for i in range(count)]
