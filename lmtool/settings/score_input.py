"""A text to score: read from a file, and cut into windows where it has more tokens than the model's context."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lmtool.core.errors import FileError, UsageError

MAX_BYTES = 4 * 2**20
"""Of a text that is scored, as of a prompt on stdin."""


def read_text(name: str) -> str:
    """The text of a file, exactly as it is. Raises `FileError` for what cannot be read, is empty, or is no text."""
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise FileError(f"{name} is a folder", "name one of its files")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read {name}: {error.strerror}", "check the path") from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{name} has {path.stat().st_size:,} bytes; at most {MAX_BYTES:,} are scored at once",
            f"score a part:  head -c {MAX_BYTES} {name} | lmtool score - --heat",
        )
    if not data:
        raise FileError(f"{name} is empty: there is nothing to score", "name a file with a text")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{name} is no text: byte {error.start} is {data[error.start]:#04x}, which is not UTF-8",
            "convert it first, such as with iconv; binary files cannot be scored",
        ) from None
    if "\0" in text:
        raise FileError(f"{name} is no text: byte {data.index(0)} is a zero", "binary files cannot be scored")
    return text


class Window(NamedTuple):
    """A part of a sequence of prompt and text that is scored in one request."""

    start: int
    """Its first token: those from here to `first` are the prompt of the request."""
    first: int
    """The first token that is scored."""
    end: int
    """Behind the last one."""


def windows(prompt_tokens: int, tokens: int, context: int) -> list[Window]:
    """The windows of a text of `tokens` behind `prompt_tokens`; one where all of it fits into the context.

    Behind the first window each token has at least half a context before it in its own window.
    """
    end, first = prompt_tokens + tokens, prompt_tokens
    found: list[Window] = []
    while first < end:
        start = 0 if not found and first < context else max(0, first - context // 2)
        stop = min(end, start + context)
        found.append(Window(start, first, stop))
        first = stop
    return found


def windows_sentence(count: int, tokens: int, context: int) -> str:
    """What a reader of the numbers must know of windows."""
    return (
        f"{tokens:,} tokens do not fit into the model's context of {context:,}: scored in {count} windows, in which "
        f"each token behind the first {context:,} sees at least the {context // 2:,} tokens before it, not all of them"
    )
