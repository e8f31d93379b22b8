"""`lmtool docs`: the manual, rendered on a terminal, plain Markdown in a pipe."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.common_options import Common
from lmtool.settings.option import option

FOLDER = Path(__file__).parent.parent / "docs"
MAX_COLUMNS = 100
"""Longer lines are hard to read."""
_ENTRY = re.compile(r"^- \[([\w-]+)\]\(([^)]+)\): (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^):]+?)(#[^)]*)?\)")
"""A link to another file of the manual; paths with a colon are URLs."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the manual, as its contents page lists it."""

    topic: str
    path: Path
    summary: str


def contents() -> list[Page]:
    """List the pages in reading order."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    return [Page(topic, (FOLDER / path).resolve(), summary) for topic, path, summary in _ENTRY.findall(text)]


def _complete(incomplete: str) -> list[str]:
    return [page.topic for page in contents() if page.topic.startswith(incomplete)]


def docs(
    common: Common,
    topic: Annotated[
        str | None,
        typer.Argument(help="Page, such as serving; without it, the list.", autocompletion=_complete),
    ] = None,
    no_pager: bool = option(False, "Print long pages without a pager."),
) -> None:
    """Read the manual: one page, or the list of pages; a pipe gets Markdown."""
    from lmtool.settings.terminal import Output

    out, pages = Output.of(common.color), contents()
    if not out.terminal:
        out.line(read(pages, topic) if topic else _listing(pages))
        return
    size = shutil.get_terminal_size()
    text = render(read(pages, topic), pages, min(size.columns, MAX_COLUMNS), color=out.color)
    if no_pager or text.count("\n") < size.lines or not page(text):
        print(text, end="", flush=True)  # noqa: T201 - our own pages, with colours that `Output` would make visible


def read(pages: list[Page], topic: str | None) -> str:
    """Markdown of a page, or of the contents page without a topic. Raises `UsageError` for an unknown topic."""
    if topic is None:
        return (FOLDER / "README.md").read_text(encoding="utf-8")
    for one in pages:
        if one.topic == topic.lower().removesuffix(".md"):
            return one.path.read_text(encoding="utf-8")
    import difflib

    from lmtool.core.errors import UsageError

    topics = [one.topic for one in pages]
    near = difflib.get_close_matches(topic.lower(), topics, 1)
    hint = f"did you mean:  lmtool docs {near[0]}" if near else "list the pages:  lmtool docs"
    raise UsageError(f"unknown page {topic!r}", hint, f"pages: {', '.join(topics)}")


def _listing(pages: list[Page]) -> str:
    width = max(len(one.topic) for one in pages)
    return "\n".join(f"{one.topic:<{width}}  {one.summary}" for one in pages)


def render(text: str, pages: list[Page], columns: int, *, color: bool) -> str:
    """Render Markdown for a terminal; links between pages become `lmtool docs` commands."""
    import io

    from rich.console import Console
    from rich.markdown import Markdown

    topics = {one.path.name: one.topic for one in pages}

    def command(link: re.Match[str]) -> str:
        topic = topics.get(link[2].rpartition("/")[2])
        if topic is None or topic == link[1]:
            return f"**{link[1]}**"
        return f"{link[1]} (`lmtool docs {topic}`)"

    console = Console(
        file=io.StringIO(),
        width=columns,
        force_terminal=True,
        color_system="standard" if color else None,
        no_color=not color,
    )
    with console.capture() as captured:
        console.print(Markdown(_LINK.sub(command, text), hyperlinks=False, code_theme="ansi_dark"))
    return re.sub(r" +$", "", captured.get(), flags=re.MULTILINE)


def page(text: str) -> bool:
    """Show the text in the user's pager, as git does: `PAGER`, else `less`, which keeps colours.

    Returns False without a pager, or when an empty `PAGER` disables it.
    """
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or command == ["cat"] or os.environ.get("TERM") == "dumb":
        return False
    try:
        pager = subprocess.Popen(  # noqa: S603 - the user's own PAGER
            command,
            stdin=subprocess.PIPE,
            encoding="utf-8",
            env={"LESS": "FRX", "LV": "-c", **os.environ},
        )
    except OSError:
        return False
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the pager: it stops a search
    try:
        pager.communicate(text)
    finally:
        signal.signal(signal.SIGINT, before)
    return True
