"""The examples of README and manual: blocks of Markdown that a reader can type.

What a block's language says, and what its test does:

    console        `$ COMMAND` and its output; runs, succeeds, and prints each line shown
    text           the same, but the command fails
    sh             commands without output; one that stays (a server, the inspector) is ended once it is there
    python         a script; runs and prints something
    sh skip, python skip   needs what a test machine has not; commands of lmtool must still parse

In output, `...` alone in a line stands for lines left out; figures that differ from run to run are not compared.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BY_CI = ("python3 -m venv", "pip install", "pytest", ".ci/run")
"""Commands that `.ci/run` runs itself, in a fresh environment."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "lmtool/docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)( skip)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CHANGING = re.compile(
    r"\d+(\.\d+)?(?= (ms|s|tok/s)\b)|(?<=p50 )\d+(\.\d+)?|(-e )?:\d{4,5}|\d\d:\d\d:\d\d|\b\d\.\d+\.\d+\S*"
    r"|(?<=cpu · )(C kernels \([^)]+\)|oneDNN|torch)"
)
"""Times, ports and versions; widths of white space follow them. So do the kernels of a processor."""


@dataclass(frozen=True, slots=True)
class Example:
    """A command or script of a page."""

    language: str
    source: str
    output: str = ""
    """What the page shows below it."""
    skip: bool = False

    def missing_from(self, printed: str) -> list[str]:
        """Return the lines shown that were not printed."""
        shown = [line for line in self.output.splitlines() if line.strip() and line.strip() != "..."]
        steady_print = steady(printed)
        return [line for line in shown if steady(line) not in steady_print]


def steady(text: str) -> str:
    """Return the text without what differs from run to run."""
    return " ".join(_CHANGING.sub(" ", text).split())


def examples(page: Path) -> list[Example]:
    """Read a page's examples, in order."""
    found = []
    for language, skip, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in {"console", "text"}:
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append(Example(language, command, output, bool(skip)))
        elif language == "sh":
            commands = body.replace("\\\n", " ").splitlines()
            found += [Example(language, command, skip=bool(skip)) for command in commands if command.strip()]
        elif language == "python":
            found.append(Example(language, body, skip=bool(skip)))
    return found


def requirements(page: Path) -> tuple[str, ...]:
    """What a reader of a page has installed: what its `pip install` lines name; README's lmtool where none does."""
    words = [
        word.replace(".[", "lmtool[")
        for example in examples(page)
        if example.source.startswith("pip install ")
        for word in shlex.split(example.source, comments=True)[2:]
        if word not in {"-e", "-c", "constraints.txt"}
    ]
    own = any(word.startswith("lmtool") for word in words)
    return tuple(sorted({*words, *(() if own else requirements(PAGES[0])[:1])}))


def environments() -> dict[tuple[str, ...], list[str]]:
    """The pages with examples, by what their readers have installed."""
    pages = defaultdict(list)
    for page in PAGES:
        if examples(page):
            pages[requirements(page)].append(str(page.relative_to(ROOT)))
    return dict(pages)


if __name__ == "__main__":
    for packages, pages in environments().items():
        print(*packages, "-", *pages)  # noqa: T201  # read by .ci/packages
