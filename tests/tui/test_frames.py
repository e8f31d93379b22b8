"""Columns of frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.tui.frames import IN, OUT, FrameLog


@given(st.lists(st.lists(st.floats(0, 100), max_size=4), max_size=5))
def test_times_never_fall(groups: list[list[float]]) -> None:
    """A time before the last one's counts as the last one's, so that moments can be looked up."""
    log = FrameLog()
    for times in groups:
        log.extend(times, range(len(times)), [1] * len(times), IN, [0] * len(times))
    given_ = [time for times in groups for time in times]
    assert log.times.tolist() == [max(given_[: i + 1]) for i in range(len(given_))]
    assert log.end == max([*given_, 0.0])


def test_one_at_a_time() -> None:
    """The row of an event is the number of events before it; large connection numbers and offsets fit."""
    log = FrameLog()
    assert log.add(0.5, 2**62, 2**52, OUT, 0) == 0
    assert log.add(0.7, 100, 1, IN, 3) == 1
    assert (log.offsets[0], log.connections[0], log.directions.tolist()) == (2**62, 2**52, [OUT, IN])
    assert log.first_tokens.tolist() == [0, 3]


def test_until_a_moment() -> None:
    """An event is seen from its own time on."""
    log = FrameLog()
    log.extend([1.0, 2.0, 2.0], range(3), [1, 1, 1], IN, [0, 0, 0])
    assert [log.until(moment) for moment in (0.5, 1.0, 1.5, 2.0, 9.0)] == [0, 1, 1, 3, 3]
