"""What prompts have in common, on the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.terminal.tui.documents import prefix_list
from lmtool.terminal.tui.documents.prefix_list import prefix_lines
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.view import View
from lmtool.trace.prefix_sharing import sentences, shared_prefixes
from lmtool.trace.reader import TraceReader
from tests.terminal.tui.scripted import watching
from tests.terminal.tui.states import text

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
    monkeypatch.setattr(prefix_list, "MOST_REQUESTS", 2)
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
