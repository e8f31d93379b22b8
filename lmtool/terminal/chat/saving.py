"""A conversation as a file of the user's: Markdown to read, or messages as OpenAI's API has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError, UsageError
from lmtool.terminal.chat.turns import Turn, TurnTree
from lmtool.trace.writer import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_BYTES = 16 << 20
"""Of a file of messages that is read."""
FORMS = (".md", ".json", ".lmtp.jsonl")


def write_conversation(path: Path, turns: Sequence[Turn]) -> None:
    """Write the turns in the form that the file's name ends in: `.md` or `.json`. Raises `FileError`, `UsageError`."""
    if path.suffix not in {".md", ".json"}:
        raise UsageError(f"{path.name} tells no form of file", f"names that end in {', '.join(FORMS)} do")
    text = _markdown(turns) if path.suffix == ".md" else _messages(turns)
    write_text(path, text, overwrite=None)


def read_messages(path: Path) -> TurnTree:
    """The conversation of a file of messages, such as `write_conversation` writes it. Raises `FileError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", "/load alone lists your conversations") from None
    if len(data) > MAX_BYTES:
        raise FileError(f"{path} has more than {MAX_BYTES >> 20} MiB, the most that is read", "cut it into parts")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is no JSON: {error}", "a list of messages, or a trace of a conversation, is read"
        ) from None
    messages = value.get("messages") if isinstance(value, dict) else value
    return _tree(path, messages if isinstance(messages, list) else [])


def _tree(path: Path, messages: Sequence[object]) -> TurnTree:
    tree, system, asked = TurnTree(), None, None
    for place, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise FileError(f"{path}: message {place} has no text", 'expected {"role": "user", "content": "..."}')
        if role in {"system", "developer"} and place == 0:
            system = content
        elif role == "user" and asked is None:
            asked = content
        elif role == "assistant" and asked is not None:
            tree.add(Turn(len(tree.turns) + 1, 0, asked, asked, content, "stop", system))
            asked = None
        else:
            raise FileError(f"{path}: message {place} is of {role!r:.40}", "user and assistant must take turns")
    if not tree.turns:
        raise FileError(f"{path} holds no prompt with an answer", 'expected [{"role": "user", "content": "..."}, ...]')
    return tree


def _messages(turns: Sequence[Turn]) -> str:
    system = turns[-1].system if turns else None
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += [{"role": "user", "content": turn.text}, {"role": "assistant", "content": turn.answer}]
    return json.dumps(messages, ensure_ascii=False, indent=1) + "\n"


def _markdown(turns: Sequence[Turn]) -> str:
    system = turns[-1].system if turns else None
    parts = [f"*System:* {system}"] if system else []
    for turn in turns:
        quoted = "\n".join(f"> {line}".rstrip() for line in turn.text.split("\n"))
        parts += [quoted, turn.answer.strip()]
    return "\n\n".join(parts) + "\n"
