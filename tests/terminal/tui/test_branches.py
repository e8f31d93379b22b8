"""The tree of branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.terminal.tui.documents import comparison
from lmtool.terminal.tui.documents.comparison import Branches, prefix_lines
from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.runs import length
from lmtool.terminal.tui.view import View
from lmtool.trace.prefix_sharing import sentences, shared_prefixes
from lmtool.trace.reader import TraceReader
from tests.terminal.tui.scripted import watching
from tests.terminal.tui.states import text
from tests.trace.conftest import generate, token, tokens


def grown() -> tuple[Branches, View]:
    """A stream with two branches, one of which has one of its own."""
    spool = EventStore()
    spool.feed([generate(0.0, i) for i in range(1, 5)])
    spool.feed([tokens(0.1, *[token(i, i, text=f" 日本 {i}\n" * 3) for i in range(1, 5)])])
    branches = Branches()
    branches.add("1/1", 7, "1/2", " late")
    branches.add("1/1", 3, "1/3", " early")
    branches.add("1/3", 1, "1/4", "⟨1b⟩[31m")
    return branches, View(spool.state, spool)


def tree(branches: Branches, view: View, label: str, columns: int = 60, *, ascii_only: bool = False) -> list[str]:
    """The tree as it is drawn."""
    lines = branches.lines(view, label, columns, ascii_only=ascii_only)
    return ["".join(run.text for run in line) for line in lines]


def test_a_tree() -> None:
    """Children stand below their parent in order of where they left it, whichever of the tree is asked for."""
    branches, view = grown()
    drawn = tree(branches, view, "1/4")
    assert drawn == tree(branches, view, "1/1")
    assert [line.split()[0] if i == 0 else line.split("#")[1].split()[0] for i, line in enumerate(drawn)] == [
        "1/1",
        "3",
        "1",
        "7",
    ]
    assert [line.startswith("   └─") for line in drawn] == [False, False, True, False]
    assert all("ppl 1.6" in line for line in drawn)
    assert "⟨1b⟩" in drawn[2] or "\\x1b" in drawn[2]


def test_clicks_choose_streams() -> None:
    """Label and text of a line lead to its stream; the one under the cursor is marked."""
    branches, view = grown()
    lines = branches.lines(view, "1/1", 60)
    assert [{run.target for run in line if run.target is not None} for line in lines] == [{0}, {2}, {3}, {1}]
    assert [any(run.style == "cursor" for run in line) for line in lines] == [True, False, False, False]


def test_narrow() -> None:
    """Text is cut with a sign by the columns it takes."""
    branches, view = grown()
    line = branches.lines(view, "1/1", 24)[0]
    assert length(line) <= 24
    assert "…" in "".join(run.text for run in line)


def test_without_unicode() -> None:
    """Lines and signs of cutting are ASCII where that is asked for."""
    branches, view = grown()
    drawn = "".join(tree(branches, view, "1/1", 24, ascii_only=True))
    assert "`-" in drawn
    assert "~" in drawn
    assert not {"└", "─", "…"} & set(drawn)


def test_parents_and_roots() -> None:
    """Each branch knows what it goes on from, a score what it scores; what is no branch is its own root."""
    branches, view = grown()
    assert [branches.origin(label) for label in ("1/1", "1/3", "1/4")] == [None, "1/1", "1/3"]
    assert [branches.root(label) for label in ("1/4", "9/9")] == ["1/1", "9/9"]
    assert branches.lines(view, "9/9", 60) == []


FOLDER = Path(__file__).parents[3] / "recordings"


def view_of(name: str) -> View:
    """A recording at its end."""
    file = TraceFile(FOLDER / f"{name}.lmtp.jsonl")
    while not file.load(1.0):
        pass
    return View(file.state, file, live=False)


@pytest.mark.parametrize("name", ["openai_tool_loop", "anthropic_tool_loop", "cache_salt", "answers_over_http"])
def test_as_the_command_says(name: str) -> None:
    """The words are those of `lmtool cache why`, read again from the frames; each request is its stream's target."""
    reader = TraceReader(FOLDER / f"{name}.lmtp.jsonl")
    found, vocabulary = shared_prefixes(event for _, event in reader.with_offsets(whole=True))
    expected = [line for one in found for line in sentences(one, vocabulary.get)]
    view = view_of(name)
    lines = prefix_lines(view)[1:]
    assert [text(line)[7:] for line in lines] == expected
    targets = [line[0].target for line in lines if line[0].target is not None]
    assert [view.state.streams[target].label for target in targets] == [one.label for one in found]


def test_as_many_as_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many requests the latest up to the cursor's stream are read, and that is said."""
    monkeypatch.setattr(comparison, "MOST_REQUESTS", 2)
    view = view_of("cache_salt")
    view.choose_stream(2)
    lines = [text(line) for line in prefix_lines(view)]
    assert lines[1] == "the 1 requests before these were not read"
    assert [line[:3] for line in lines[2:] if line[:1] != " "] == ["1/2", "1/3"]


async def test_the_key() -> None:
    """P opens the list at the stream under the cursor; enter goes to the stream of a line."""
    async with watching() as seen:
        await seen.press("P")
        assert "what prompts have in common" in seen.text()
        assert "in common with" in seen.text()
        await seen.press("j", "enter")
        assert "what prompts have in common" not in seen.text()
        assert seen.app.view.stream == 1
