"""Files put into a prompt by `@path`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 1 << 20
"""Of all files in one prompt."""
MAX_FILES = 20
MAX_SUGGESTIONS = 200
_MENTION = re.compile(r'(?<!\S)@(?P<escaped>@)?(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s@"]\S*))')
_AFTER = ".,;:!?)]}'"
"""Characters behind a path that belong to the sentence around it."""


def attach_files(prompt: str) -> tuple[str, list[str]]:
    """The prompt with the files that its `@path` words name put behind it, and a line on each for the user.

    A word whose file does not exist stays text, which a line says; `@@word` is the text `@word`. Raises `FileError` for
    what cannot be read or is no text, `UsageError` for more than 20 files or 1 MiB in all.
    """
    files: dict[Path, str] = {}
    notes: list[str] = []
    for mention in _MENTION.finditer(prompt):
        if mention["escaped"]:
            continue
        path = _existing(mention)
        if path is None:
            notes.append(f"there is no file {mention[0][1:]}: sent as text")
        elif path not in files:
            files[path] = _read(path, MAX_BYTES - sum(len(text.encode()) for text in files.values()))
            notes.append(f"with {path}: {len(files[path].encode()):,} bytes")
            if len(files) > MAX_FILES:
                raise UsageError(f"more than {MAX_FILES} files in one prompt", "send them in several prompts")
    text = _MENTION.sub(lambda found: found[0][1:] if found["escaped"] else found[0], prompt)
    return "\n\n".join([text, *(_block(path, content) for path, content in files.items())]), notes


def path_suggestions(beginning: str) -> Iterator[str]:
    """What may stand in place of the beginning of a path: names in its folder, folders with `/`."""
    folder, _, name = beginning.rpartition("/")
    where = Path(f"{folder}/" if folder or beginning.startswith("/") else ".").expanduser()
    try:
        found = sorted(where.iterdir())
    except OSError:
        return
    shown = 0
    for path in found:
        if path.name.startswith(name) and (name or not path.name.startswith(".")) and not re.search(r"\s", path.name):
            yield beginning[: len(beginning) - len(name)] + path.name + "/" * path.is_dir()
            shown += 1
            if shown >= MAX_SUGGESTIONS:
                return


def _existing(mention: re.Match[str]) -> Path | None:
    written = mention["quoted"] or mention["plain"]
    for spelling in (written, written.rstrip(_AFTER)):
        try:
            path = Path(spelling).expanduser() if spelling else None
            if path is not None and path.exists():
                return path
        except (OSError, RuntimeError, ValueError):  # a name that is too long, a user that is not known
            return None
    return None


def _read(path: Path, room: int) -> str:
    """The text of a file of at most `room` bytes."""
    if path.is_dir():
        raise FileError(f"{path} is a folder", "name its files one by one, such as @folder/file.txt")
    if not path.is_file():
        raise FileError(
            f"{path} is a device or a pipe, and no file", "name a file, or write @@ to send the word as text"
        )
    try:
        with path.open("rb") as file:
            data = file.read(room + 1)
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error.strerror}", "check the path, or write @@ for the text itself"
        ) from None
    if len(data) > room:
        size = f"{path.stat().st_size:,} bytes"
        raise UsageError(
            f"{path} ({size}) is too large: the files of a prompt may have {MAX_BYTES:,} bytes in all",
            "put the part that matters into a file of its own",
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is no text: byte {error.start} is {data[error.start]:#04x}, which is not UTF-8",
            "convert it first; pictures and other binary files cannot be sent",
        ) from None
    if "\0" in text:
        raise FileError(f"{path} is no text: there is a zero byte in it", "binary files cannot be sent")
    return text


def _block(path: Path, content: str) -> str:
    """A file as models know them from documentation: its name, and the content between fences longer than its own."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", content)), default=0))
    end = "" if content.endswith("\n") else "\n"
    return f"{path}:\n{fence}\n{content}{end}{fence}"
