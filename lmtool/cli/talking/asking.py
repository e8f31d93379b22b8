"""What is asked: the prompt from words and stdin, and the request made of it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from lmtool.cli.talking.parameters import PromptWords, sampling, split_prompt
from lmtool.errors import UsageError
from lmtool.types import ChatMessage, Constraint, GenerateRequest, ModelInfo, NamedProcessor, Prompt, SamplingParams

MAX_TOKENS = 256
"""Tokens of an answer unless said otherwise: LMTP's own 32 would cut most sentences."""
STDIN_LIMIT = 4 << 20
"""Most bytes read from stdin: LMTP's limit on a frame."""


@dataclass(frozen=True, slots=True)
class Words:
    """How the words of a command line are read."""

    literal: bool = False
    """Take nothing for a parameter."""
    compat_space: bool = False
    """Leave one space at the prompt's end, as LMQL's own client does."""


def question(words: Sequence[str], how: Words, stdin: TextIO | None) -> PromptWords | None:
    """Make the prompt: the words, or stdin, or both with a blank line between; `-` places stdin where it stands.

    Parameters are only taken from words, never from stdin. None where neither says anything and stdin is a terminal.
    Raises `UsageError` for a parameter's value, an empty prompt, or text that is not UTF-8.
    """
    typed = " ".join(words)
    if "-" in words:
        return _placed(list(words), how, stdin)
    said = PromptWords(typed) if how.literal else split_prompt(typed, compat_space=how.compat_space)
    _check(said.text)
    piped = read_stdin(stdin)
    if piped is None and not said.text.strip(" "):
        if words:
            raise UsageError("the prompt is empty", 'say something:  lmtool chat "Hello there"')
        return None
    if piped and said.text.strip(" "):
        return replace(said, text=f"{said.text}\n\n{piped}")
    text = piped or said.text
    if not text.strip(" "):
        raise UsageError(
            "the prompt is empty: no words, and nothing on stdin", 'say something:  lmtool chat "Hello there"'
        )
    return replace(said, text=text)


def _placed(words: list[str], how: Words, stdin: TextIO | None) -> PromptWords:
    """Put stdin in the place of `-`; only words behind it can be parameters."""
    place = words.index("-")
    behind = " ".join(words[place + 1 :])
    said = PromptWords(behind) if how.literal else split_prompt(behind, compat_space=how.compat_space)
    before = " ".join(words[:place])
    piped = read_stdin(stdin, wait=True)
    if piped is None:
        raise UsageError("'-' stands for stdin, which is closed", "pipe something in, or leave '-' out")
    text = " ".join(part for part in (before, piped, said.text) if part)
    _check(text)
    if not text:
        raise UsageError("the prompt is empty: nothing came from stdin", 'say something:  lmtool chat "Hello there"')
    return replace(said, text=text)


def read_stdin(stdin: TextIO | None, *, wait: bool = False) -> str | None:
    """Text piped in, without its last line feed; None where stdin is a terminal, closed, or a device such as /dev/null.

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
        return True  # not a file of the system's: whoever put it there wants it read
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _check(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the prompt is not valid UTF-8", "check the terminal's encoding, or pipe the text in"
        ) from None


@dataclass(frozen=True, slots=True)
class Asking:
    """How prompts become requests, the same for every prompt of a session."""

    model: str | None = None
    system: str | None = None
    template: bool | None = None
    """Whether to send messages, for the model's chat template; None: where the model has one."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """Values that options gave, by field of `SamplingParams`."""
    constraint: Constraint | None = None
    """What every answer is held to."""
    logits_processors: tuple[NamedProcessor, ...] = ()
    """Change the logits of every answer."""

    def sampling(self, info: ModelInfo, words: Mapping[str, Any]) -> SamplingParams:
        """Parameters of one request: what the words say over what the options say over the defaults."""
        return sampling(SamplingParams(max_tokens=default_max_tokens(info)), self.said, words)

    def request(
        self, stream_id: int, text: str, info: ModelInfo, sampling: SamplingParams, history: Sequence[ChatMessage] = ()
    ) -> GenerateRequest:
        """Return the request for one prompt. Raises `UsageError` for a system text where there is no template."""
        prompt = self._prompt(text, info, history)
        return GenerateRequest(
            stream_id,
            prompt,
            sampling,
            model=self.model,
            text=True,
            constraint=self.constraint,
            logits_processors=self.logits_processors,
        )

    def _prompt(self, text: str, info: ModelInfo, history: Sequence[ChatMessage]) -> Prompt:
        if self.templated(info):
            system = (ChatMessage("system", self.system),) if self.system else ()
            return (*system, *history, ChatMessage("user", text))
        if self.system and self.template is False:
            raise UsageError("a system text needs the chat template", "leave out --no-template, or --system")
        if self.system:
            raise UsageError(
                f"{info.model} has no chat template, so there is no place for a system text", "put it into the prompt"
            )
        return text

    def templated(self, info: ModelInfo) -> bool:
        """Whether messages are sent."""
        return info.chat_template if self.template is None else self.template


def default_max_tokens(info: ModelInfo) -> int:
    """Tokens of an answer unless said otherwise: 256, but never more than half of the model's context."""
    return MAX_TOKENS if info.context_length is None else max(1, min(MAX_TOKENS, info.context_length // 2))


def variants(sampling: SamplingParams, count: int) -> list[SamplingParams]:
    """Parameters of several streams of one prompt: a given seed counts up, so that they differ and can be repeated."""
    if sampling.seed is None:
        return [sampling] * count
    return [replace(sampling, seed=sampling.seed + i) for i in range(count)]


def standard_input() -> TextIO | None:
    """Return stdin, or None where the process has none."""
    return sys.stdin
