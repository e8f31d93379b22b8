"""What events pass through."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.trace.events import Close, Event, Open, Request, Vocab
from lmtool.trace.reader import TraceReader
from tests.trace.conftest import generate, token, tokens


class TestEventPipeline:
    """What events pass through on their way to the screen."""

    def test_what_comes_early_is_kept(self) -> None:
        """Events told before anybody takes them come first, in order."""
        pipeline, fed = EventPipeline(pytest.fail, at="client"), list[Event]()
        pipeline.add(1, [Open(0.0, 1)])
        pipeline.feed_to(fed.extend)
        pipeline.add(1, [generate(0.1)])
        pipeline.add(1, [])
        assert fed == [Open(0.0, 1), generate(0.1)]

    def test_secrets_stay_outside(self) -> None:
        """Headers that are not known to be harmless and queries of paths are left out."""
        pipeline, fed = EventPipeline(pytest.fail, at="proxy"), list[Event]()
        pipeline.feed_to(fed.extend)
        pipeline.add(1, [Request(0.0, 1, "GET", "/v1?key=abc", {"authorization": "Bearer abc", "accept": "*/*"})])
        assert fed == [Request(0.0, 1, "GET", "/v1", {"accept": "*/*"})]

    def test_ids_are_explained_before_they_are_named(self) -> None:
        """Each id once, as soon as the meaning is known."""
        pipeline, fed = EventPipeline(pytest.fail, at="proxy"), list[Event]()
        pipeline.feed_to(fed.extend)
        pipeline.add(1, [generate(0.0)])
        pipeline.explain_by(lambda i: f"<{i}>".encode())
        pipeline.add(1, [tokens(0.1, token(5)), tokens(0.2, token(5))])
        assert fed[1:] == [Vocab(0.1, 0, {5: "<5>"}), tokens(0.1, token(5)), tokens(0.2, token(5))]

    def test_the_clock_can_go_on_from_anywhere(self) -> None:
        """Such as from the end of a file."""
        pipeline = EventPipeline(pytest.fail, at="client")
        assert 0 <= pipeline.clock() < 1000
        pipeline.set_clock(5000.0)
        assert 5000 <= pipeline.clock() < 6000

    async def test_a_recording_begins_at_its_own_zero(self, tmp_path: Path) -> None:
        """Times count from what comes first in it; a connection that is older says by how much."""
        pipeline = EventPipeline(pytest.fail, at="client")
        pipeline.feed_to(lambda _events: None)
        pipeline.set_clock(100.0)
        pipeline.add(1, [Open(10.0, 1, {"peer": "client"}), Open(20.0, 2), Close(30.0, 2, "client")])
        pipeline.start_recording(tmp_path / "a", [generate(95.0), tokens(96.5, token(5))])
        pipeline.add(1, [Open(100.0, 3), tokens(100.0, token(6))])
        await pipeline.stop_recording()
        reader = TraceReader(tmp_path / "a")
        events = list(reader)
        assert events[:-1] == [
            Open(0.0, 1, {"peer": "client", "before": 85.0}),
            generate(0.0),
            tokens(1.5, token(5)),
            Open(5.0, 3),
            tokens(5.0, token(6)),
        ]
        assert 5 <= events[-1].time < 60
        created = datetime.fromisoformat(reader.header.created or "")
        assert 5 <= (datetime.now(UTC) - created).total_seconds() < 60

    async def test_a_recording_of_nothing_that_runs(self, tmp_path: Path) -> None:
        """It begins now."""
        pipeline = EventPipeline(pytest.fail, at="client")
        pipeline.feed_to(lambda _events: None)
        pipeline.set_clock(100.0)
        pipeline.start_recording(tmp_path / "a")
        pipeline.add(1, [Open(pipeline.clock(), 1)])
        await pipeline.stop_recording()
        assert all(event.time < 60 for event in TraceReader(tmp_path / "a"))

    async def test_a_recording_has_the_words_it_needs(self, tmp_path: Path) -> None:
        """What a recording names is explained in it, also when the tokenizer is known only later."""
        pipeline = EventPipeline(pytest.fail, at="client")
        pipeline.feed_to(lambda _events: None)
        pipeline.start_recording(tmp_path / "a")
        pipeline.explain_by(lambda i: f"<{i}>".encode())
        pipeline.add(1, [generate(0.0), tokens(0.0, token(5))])
        await pipeline.stop_recording()
        pipeline.start_recording(tmp_path / "b", [generate(0.0)])
        pipeline.add(1, [tokens(0.0, token(5))])
        await pipeline.stop_recording()
        for name, words in (("a", {5: "<5>", 6: "<6>", 7: "<7>"}), ("b", {5: "<5>", 6: "<6>", 7: "<7>"})):
            told: dict[int, object] = {}
            for event in TraceReader(tmp_path / name):
                if isinstance(event, Vocab):
                    told |= event.tokens
            assert told == words
