"""Stop strings: what may be shown, and where a text ends."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import RequestError
from lmtool.inference.text.stop_strings import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, StopStrings

SHORT = st.text("ab", max_size=12)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str, str | None]:
    """Return what each piece released, what the flush did, and the match."""
    watch = StopStrings(stops)
    shown = [watch.push(piece) for piece in pieces]
    return shown, watch.flush(), watch.matched


def test_text_without_a_stop_string_passes() -> None:
    """Text that can be no part of a stop string is shown at once."""
    assert run(["END"], ["one ", "two"]) == (["one ", "two"], "", None)


def test_possible_beginning_is_held_back() -> None:
    """What may become a stop string waits until it is decided."""
    assert run(["END"], ["a E", "N", "d"]) == (["a ", "", "ENd"], "", None)
    assert run(["END"], ["a EN"]) == (["a "], "EN", None)


def test_match_is_never_shown() -> None:
    """The match and what follows it are not shown, also across pieces."""
    assert run(["END"], ["a E", "ND more", "x"]) == (["a ", "", ""], "", "END")


def test_held_text_before_the_match_is_shown() -> None:
    """A false beginning in front of the real one is shown with it."""
    assert run(["aab"], ["aa", "ab"]) == (["", "a"], "", "aab")


def test_first_complete_match_wins() -> None:
    """The match that is complete first ends the text; of two complete at once, the one that began first."""
    assert run(["abcd", "bc"], ["xabcd"]) == (["xa"], "", "bc")
    assert run(["bc", "abc"], ["xabc"]) == (["x"], "", "abc")


@given(stops=st.lists(SHORT.filter(bool), min_size=1, max_size=4), pieces=st.lists(SHORT, max_size=8))
def test_cuts_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    """The text shown is the same for every way of cutting it, and is what a plain search finds."""
    text = "".join(pieces)
    ends = [(i + len(s), i, s) for s in stops for i in range(len(text)) if text.startswith(s, i)]
    expected = text[: min(ends)[1]] if ends else text
    shown, rest, matched = run(stops, pieces)
    assert "".join(shown) + rest == expected
    assert matched == (min(ends)[2] if ends else None)


@given(stops=st.lists(SHORT.filter(bool), min_size=1, max_size=4), pieces=st.lists(SHORT, max_size=8))
def test_nothing_is_held_without_need(stops: list[str], pieces: list[str]) -> None:
    """What is held back is the beginning of a stop string, the longest one possible."""
    watch = StopStrings(stops)
    text = "".join(watch.push(piece) for piece in pieces)
    if watch.matched is None:
        held = watch.flush()
        whole = text + held
        beginnings = {stop[:i] for stop in stops for i in range(len(stop))}
        assert held == max((b for b in beginnings if whole.endswith(b)), key=len)


def test_time_is_linear() -> None:
    """A long stop string over a text of false beginnings takes no more than linear time."""
    watch = StopStrings(["a" * (MAX_STOP_CHARACTERS - 1) + "b"])
    begin = time.process_time()
    for _ in range(400):
        watch.push("a" * 100)
    watch.push("b")
    assert watch.matched is not None
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    "stops", [[""], ["a", ""], ["a"] * (MAX_STOP_STRINGS + 1), ["a" * (MAX_STOP_CHARACTERS + 1)]], ids=len
)
def test_bad_stop_strings(stops: list[str]) -> None:
    """Empty, too many or too long stop strings are refused."""
    with pytest.raises(RequestError):
        StopStrings(stops)
