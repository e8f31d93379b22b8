"""What every key does to the view: time, cursor, filter, marks; on a state that goes on growing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.measures import UNCERTAINTIES, Uncertainty
from lmtool.terminal.tui.view import SPEEDS, THRESHOLDS, VIEWS, View
from lmtool.trace.filter import parse
from tests.terminal.tui.scripted import conversation, event, request
from tests.terminal.tui.states import view_of
from tests.trace.conftest import generate, token, tokens


def watching(*, live: bool = True) -> tuple[View, EventStore]:
    """A view of two streams: tokens 0 2 4 5 6 7 of the first, 1 3 8 of the second."""
    spool = EventStore()
    spool.feed(conversation())
    return View(spool.state, spool, live=live), spool


def more(spool: EventStore, time: float, count: int = 1) -> None:
    """Tokens come for the second stream."""
    spool.feed([tokens(time, *[token(7, 2)] * count)])


def test_it_follows_what_comes() -> None:
    """Without a moment the view is at the end, and the cursor goes along."""
    view, spool = watching()
    assert (view.token_count, view.time, view.token, view.row) == (9, 0.9, 7, None)
    view.choose_stream(1)
    more(spool, 1.0, 2)
    assert (view.token_count, view.time, view.token, view.hidden_count) == (11, 1.0, 10, 0)


def test_pause_keeps_recording() -> None:
    """A paused view stands still; what comes meanwhile is counted, and seen when it goes on."""
    view, spool = watching()
    view.pause()
    more(spool, 1.0, 3)
    assert (view.paused, view.token_count, view.hidden_count, view.time) == (True, 9, 3, 0.9)
    view.pause()
    assert (view.paused, view.token_count, view.hidden_count) == (False, 12, 0)


def test_a_file_plays() -> None:
    """A file that is at its end plays from the beginning, at its speed, up to its end; a pause holds it."""
    view, _ = watching(live=False)
    view.pause()
    assert (view.moment, view.paused) == (0.0, False)
    view.tick(0.4)
    assert view.time == pytest.approx(0.4)
    assert view.token_count == 2
    view.faster(1)
    view.tick(0.05)
    assert view.speed == 2.0
    assert view.time == pytest.approx(0.5)
    view.pause()
    view.tick(5)
    assert view.paused
    assert view.time == pytest.approx(0.5)
    view.pause()
    view.tick(5)
    assert (view.moment, view.token_count) == (None, 9)


def test_speeds_have_ends() -> None:
    """Faster than the fastest is the fastest."""
    view, _ = watching()
    view.faster(99)
    assert view.speed == SPEEDS[-1]
    view.faster(-99)
    assert view.speed == SPEEDS[0]


def test_seeking() -> None:
    """Back in time only what had come is seen; behind the end is the end; before the beginning is the beginning."""
    view, _ = watching()
    view.choose_token(7)
    view.seek(0.55)
    assert (view.token_count, view.row, view.paused) == (4, None, True)
    view.step_time(-0.1)
    assert view.token_count == 2
    view.step_time(-9)
    assert (view.time, view.token_count, view.token) == (0.0, 0, None)
    view.step_time(99)
    assert (view.moment, view.paused) == (None, False)


def test_frame_by_frame() -> None:
    """A step goes to the next moment at which something came, also over events of the same time."""
    view, _ = watching()
    view.step_frame(-1)
    assert view.time == 0.7
    view.step_frame(-1)
    assert view.time == 0.6
    view.step_frame(1)
    assert view.time == 0.7
    view.step_frame(1)
    assert view.moment is None
    for _ in range(20):
        view.step_frame(-1)
    assert view.time == 0.0


def test_streams() -> None:
    """The table shows what has begun by the moment, and what the filter lets through."""
    view, _ = watching()
    assert [s.label for s in view.streams()] == ["1/1", "1/2"]
    view.set_filter(parse("sid:2"))
    assert [s.label for s in view.streams()] == ["1/2"]
    view.move_stream(1)
    assert view.stream == 1
    view.set_filter(None)
    view.move_stream(-1)
    assert (view.current is view.state.streams[0], view.stream) == (True, 0)
    view.move_stream(-5)
    assert view.stream == 0
    view.seek(0.25)
    assert [s.label for s in view.streams()] == ["1/1"]


def test_tokens_of_a_stream() -> None:
    """The keys h and l walk along the stream under the cursor; behind its last token is the end, which is followed."""
    view, _ = watching()
    view.move_token(-1)
    assert view.row == 6
    view.move_token(-2)
    assert view.row == 4
    view.move_token(-9)
    assert view.row == 0
    view.move_token(99)
    assert (view.row, view.token) == (None, 7)


def test_rows_of_the_interleaved_view() -> None:
    """The keys j and k walk along all tokens shown; the stream under the cursor goes along."""
    view, _ = watching()
    view.move_row(-1)
    assert (view.row, view.stream) == (7, 0)
    view.choose_token(4)
    view.move_row(-1)
    assert (view.row, view.stream) == (3, 1)
    view.choose_token(view.token_rows()[0])
    assert view.row == 0
    assert view.new_below == 8
    view.end()
    assert (view.row, view.new_below) == (None, 0)


def test_surprising_tokens() -> None:
    """The keys n and N find tokens above the threshold in the stream under the cursor, and say when there is none."""
    view, _ = watching()
    view.choose_token(view.token_rows()[0])
    assert view.surprising(1)
    assert view.row == 2
    assert not view.surprising(1)
    assert view.row == 2
    assert not view.surprising(-1)
    view.next_threshold()
    assert view.threshold == 6.0
    view.end()
    assert view.surprising(-1)
    view.threshold = THRESHOLDS[-1]
    view.next_threshold()
    assert view.threshold == THRESHOLDS[0]


def test_uncertain_tokens() -> None:
    """The most uncertain among what is seen, then the next most, and back up; without logprobs there is none."""
    view, _ = watching()
    assert view.uncertain(1)
    assert view.row == 2
    order = [view.row]
    for _ in range(4):
        view.uncertain(1)
        order.append(view.row)
    logprobs = [view.state.tokens.logprobs[row] for row in order if row is not None]
    assert logprobs == sorted(logprobs)
    assert len(set(order)) == 5
    view.uncertain(-1)
    assert view.row == order[-2]
    view.choose_token(5)
    view.uncertain(-1)
    assert view.row == 2
    view.seek(0.45)
    assert view.uncertain(1)
    assert view.row == 0
    spool = EventStore()
    spool.feed([generate(0.0), tokens(0.1, token(1) | {"logprob": None})])
    for by in UNCERTAINTIES:
        none = View(spool.state, spool)
        none.uncertainty = by
        assert not none.uncertain(1)


@pytest.mark.parametrize("by", ["entropy", "margin"])
def test_uncertain_by_other_figures(by: Uncertainty) -> None:
    """By entropy where many tokens were possible, by margin where two were nearly as likely."""
    view = view_of([
        request(0.0, 1),
        *(
            event(i / 10, "<", "TOKEN", [{"token": 5 + i, "stream_id": 1, "logprob": math.log(top[0]),
                  "finish_reason": None, "top_logprobs": {str(5 + i + k): math.log(p) for k, p in enumerate(top)}}])
            for i, top in enumerate(((0.5, 0.1, 0.1), (0.45, 0.44, 0.1), (0.9, 0.05, 0.04)), 1)
        ),
    ])  # fmt: skip
    view.uncertainty = by
    rows = []
    for _ in range(3):
        assert view.uncertain(1)
        rows.append(view.row)
    assert rows == ([0, 1, 2] if by == "entropy" else [1, 0, 2])
    assert [round(view.measures.margin(row) or 0, 2) for row in range(3)] == [0.4, 0.01, 0.85]


def test_one_stream_only() -> None:
    """The key f shows one stream's tokens, f again all."""
    view, _ = watching()
    view.choose_stream(1)
    view.follow_stream()
    assert list(view.token_rows()) == [1, 3, 8]
    view.set_filter(parse("p<.5"))
    assert list(view.token_rows()) == [8]
    view.follow_stream()
    assert list(view.token_rows()) == [2, 8]
    view.set_filter(parse("  "))
    assert list(view.token_rows()) == list(range(9))


def test_filtered_tokens_while_more_come() -> None:
    """New tokens are filtered as they come; a moment hides later ones."""
    view, spool = watching()
    view.set_filter(parse("tok:7"))
    assert list(view.token_rows()) == [0, 1]
    more(spool, 1.0, 2)
    assert list(view.token_rows()) == [0, 1, 9, 10]
    view.seek(0.95)
    assert list(view.token_rows()) == [0, 1]
    assert not view.filter_more()


def test_bars() -> None:
    """The cursor among alternatives stays among them, and begins anew at another token."""
    view, _ = watching()
    view.choose_token(2)
    assert [i for i, _ in view.measures.alternatives(2)] == [13, 9, 8]
    view.move_bar(5)
    assert view.bar == 2
    view.move_bar(-9)
    assert view.bar == 0
    view.move_bar(1)
    view.move_token(1)
    assert view.bar == 0
    assert (str(view.measures.rank(2)), view.measures.name(2), view.position(2)) == ("3", 8, 1)


def test_frames_and_their_tokens() -> None:
    """The frame of the token under the cursor is the one under the cursor, and the other way."""
    view, _ = watching()
    view.choose_token(4)
    assert view.current_frame == view.state.tokens.frames[4]
    view.choose_frame(view.state.tokens.frames[2])
    assert (view.row, view.stream) == (2, 0)
    view.move_frame(-1)
    assert (view.frame, view.row) == (view.state.tokens.frames[0], 0)
    view.move_frame(-99)
    assert (view.frame, view.current_frame) == (0, 0)
    view.move_frame(99)
    assert view.frame == len(view.state.frames) - 1


def test_looks() -> None:
    """Heat modes and views come round; each mode has its value and its style."""
    view, _ = watching()
    seen = set()
    for _ in range(6):
        seen.add((view.heat, view.measures.heat(2, view.heat) is None, view.style(2)[:4]))
        view.next_heat()
    assert view.heat == "prob"
    assert seen == {
        ("prob", False, "heat"), ("surprisal", False, "heat"), ("entropy", False, "heat"), ("rank", False, "heat"),
        ("gap", False, "heat"), ("stream", True, "stre"),
    }  # fmt: skip
    for _ in VIEWS:
        view.next_mode()
    assert view.mode == VIEWS[0]
    assert view.measures.gap(2) == pytest.approx(100)
    assert (view.measures.entropy(2) or (math.inf, 0))[0] > 0


def test_marks() -> None:
    """Moments of one's own and marks of the trace are gone to in order, round and round."""
    view, _ = watching()
    view.seek(0.3)
    view.mark_moment()
    view.mark_moment()
    assert view.time_marks == [0.3]
    assert [view.next_mark(), view.next_mark(), view.next_mark()] == [0.55, 0.3, 0.55]
    view.mark_stream()
    view.choose_stream(1)
    view.mark_stream()
    assert view.stream_marks == [0, 1]
    view.mark_stream()
    assert view.stream_marks == [0]
    assert View(EventStore().state).next_mark() is None


KEYS = st.sampled_from([
    ("pause", ()), ("seek", (0.5,)), ("seek", (9.0,)), ("step_time", (-0.2,)),
    ("step_frame", (1,)), ("step_frame", (-1,)),
    ("faster", (1,)), ("move_stream", (1,)), ("move_stream", (-1,)), ("follow_stream", ()), ("mark_stream", ()),
    ("move_token", (1,)), ("move_token", (-1,)), ("move_row", (2,)), ("move_row", (-1,)), ("surprising", (1,)),
    ("surprising", (-1,)), ("uncertain", (1,)), ("end", ()), ("move_bar", (1,)), ("move_frame", (1,)),
    ("move_frame", (-2,)), ("next_heat", ()), ("next_mode", ()), ("next_threshold", ()),
    ("mark_moment", ()),
    ("next_mark", ()), ("tick", (0.3,)), ("filter_more", ()), ("set_filter", (parse("p<.5 | err"),)),
    ("set_filter", (None,)),
])  # fmt: skip


@given(st.lists(KEYS, max_size=25), st.booleans(), st.booleans())
def test_any_keys_in_any_order(keys: list[tuple[str, tuple[object, ...]]], empty: bool, live: bool) -> None:
    """Whatever is pressed, with or without tokens, cursors stay on what is seen."""
    view, spool = watching(live=live)
    if empty:
        spool = EventStore()
        view = View(spool.state, spool, live=live)
    for i, (name, arguments) in enumerate(keys):
        getattr(view, name)(*arguments)
        if i % 5 == 4:
            more(spool, 1.0 + i)
        seen = view.token_count
        assert view.token is None or view.token < seen
        assert list(view.token_rows()) == sorted(row for row in view.token_rows() if row < seen)
        assert view.new_below <= len(view.token_rows())
        assert view.current_frame is None or view.current_frame < len(view.state.frames)
        assert view.hidden_count >= 0
        if view.token is not None:
            view.style(view.token)


def test_a_recording_begins_at_its_beginning() -> None:
    """Ended streams are shown from their first token on until cursor or moment move; running ones at their end."""
    view = view_of([request(0.1, 1), request(0.1, 2), tokens(0.2, token(7, 1), token(7, 2))])
    view.state.streams[0].end(0.2, "stop", None)
    ended, running = view.state.streams
    assert not view.begins(ended)
    for move in (view.end, view.pause, lambda: view.seek(0.15), lambda: view.choose_token(0)):
        view.from_beginning = True
        view.choose_stream(1)
        assert (view.begins(ended), view.begins(running)) == (True, False)
        move()
        assert not view.begins(ended)
        view.moment = None
